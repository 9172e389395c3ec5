// CHOCO in the optimizer, beside plain loops in double with one public copy per worker.
// resume_test.cpp has saving.
#include <random>

#include "starling/exchange/replicas.h"
#include "starling/topology/schedules.h"
#include "tests/mixed.h"
#include "tests/optim/flock.h"
#include "tests/optim/plain.h"

namespace starling {
namespace {

using at::Tensor;

constexpr int kChocoSteps = 20;
constexpr std::int64_t kChocoFirst = 301, kChocoSecond = 700;
constexpr std::size_t kChocoSize = kChocoFirst + kChocoSecond;

// The gradient of value c: a float, and exact in bf16 if `narrow`. Ties between distances to the
// sent values must be the same in double and in fp32. So narrow gradients and the learning rate
// lose no bit before they are mixed.
constexpr double kChocoLr = 0.125;
double pull(bool narrow, int i, int t, std::size_t c) {
  const double way = std::sin(0.7 * static_cast<double>(c + 1) * (1 + 0.1 * i) + 0.3 * t);
  return narrow ? std::round(64 * way) / 64 : double{static_cast<float>(way)};
}

struct ChocoCase {
  const char* topology = "ring";
  int n = 4;
  int one_in = 5;
  double gamma = 0;
  bool adam = false;
  bool narrow = false;  // in bf16
  double clip = 0;
};

// x of every worker after kChocoSteps.
std::vector<std::vector<double>> plain_choco(const ChocoCase& the, const AccumAdamW& rule, double gamma) {
  const auto n = static_cast<std::size_t>(the.n);
  const Graph graph = make_schedule(the.topology, the.n).rounds.front();
  std::vector<std::vector<double>> x(n, std::vector<double>(kChocoSize, 0.5)), copy = x;
  std::vector<std::vector<Plain>> state(n, std::vector<Plain>(kChocoSize));
  for (int t = 1; t <= kChocoSteps; ++t) {
    for (std::size_t i = 0; i < n; ++i) {
      double norm = 0;
      for (std::size_t c = 0; c < kChocoSize; ++c)
        norm += std::pow(pull(the.narrow, static_cast<int>(i), t, c), 2);
      const double scale = the.clip == 0 ? 1 : std::min(1.0, the.clip / std::sqrt(norm));
      for (std::size_t c = 0; c < kChocoSize; ++c) {
        const double g = scale * pull(the.narrow, static_cast<int>(i), t, c);
        x[i][c] -= kChocoLr * (the.adam ? state[i][c].direction(g, rule) : g);
      }
      std::vector<std::size_t> order(kChocoSize);
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::ranges::stable_sort(order, std::greater(),
                               [&](std::size_t c) { return std::abs(x[i][c] - copy[i][c]); });
      order.resize((kChocoSize + static_cast<std::size_t>(the.one_in) - 1) /
                   static_cast<std::size_t>(the.one_in));
      for (const std::size_t c : order) copy[i][c] += x[i][c] - copy[i][c];
    }
    for (std::size_t c = 0; c < kChocoSize; ++c) {
      std::vector<double> at;
      for (std::size_t i = 0; i < n; ++i) at.push_back(copy[i][c]);
      const std::vector<double> s = mixed(at, graph);
      for (std::size_t i = 0; i < n; ++i) x[i][c] += gamma * (s[i] - at[i]);
    }
  }
  return x;
}

Tensor pulls(bool narrow, int i, int t, std::int64_t from, std::int64_t count) {
  Tensor g = at::zeros({count});
  for (std::int64_t c = 0; c < count; ++c)
    g.mutable_data_ptr<float>()[c] =
        static_cast<float>(pull(narrow, i, t, static_cast<std::size_t>(from + c)));
  return g;
}

// The equation in plain loops, from values N(0, 1) or, with `noise`, from equal ones, to which each
// worker adds N(0, noise) in every round. A worker sends `chosen` of `chosen` one_in values.
// Returns the workers' distance to their mean (RMS), after each quarter of 100 one_in rounds.
std::array<double, 4> plain_distances(const char* topology, int workers, int one_in, std::size_t chosen,
                                      double noise) {
  const auto n = static_cast<std::size_t>(workers);
  const Graph graph = make_schedule(topology, workers).rounds.front();
  const std::size_t size = chosen * static_cast<std::size_t>(one_in);
  const double gamma = default_gamma(one_in);
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  std::vector<std::vector<double>> x(n, std::vector<double>(size)), copy = x;
  if (noise == 0) {
    for (auto& one : x) std::ranges::generate(one, [&] { return normal(random); });
  }
  std::array<double, 4> distances{};
  std::vector<std::size_t> order(size);
  std::vector<double> at(n);
  for (int t = 0; t < 100 * one_in; ++t) {
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t c = 0; c < size && noise != 0; ++c) x[i][c] += noise * normal(random);
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::ranges::nth_element(order, order.begin() + static_cast<std::ptrdiff_t>(chosen), std::greater(),
                               [&](std::size_t c) { return std::abs(x[i][c] - copy[i][c]); });
      for (std::size_t k = 0; k < chosen; ++k) copy[i][order[k]] = x[i][order[k]];
    }
    double squares = 0;
    for (std::size_t c = 0; c < size; ++c) {
      for (std::size_t i = 0; i < n; ++i) at[i] = copy[i][c];
      const std::vector<double> s = mixed(at, graph);
      double mean = 0;
      for (std::size_t i = 0; i < n; ++i)
        mean += (x[i][c] += gamma * (s[i] - at[i])) / static_cast<double>(n);
      for (std::size_t i = 0; i < n; ++i) squares += (x[i][c] - mean) * (x[i][c] - mean);
    }
    if (t % (25 * one_in) == 25 * one_in - 1)
      distances[static_cast<std::size_t>(t / (25 * one_in))] =
          std::sqrt(squares / static_cast<double>(n * size));
  }
  return distances;
}

constexpr std::pair<const char*, int> kGraphs[] = {{"complete", 8}, {"ring", 8}, {"ring", 16},
                                                   {"torus", 16},   {"star", 8}, {"hypercube", 16}};

TEST(ChocoScheme, BringsWorkersTogetherWithItsOwnGammaHoweverLongItRuns) {
  for (const auto& [topology, n] : kGraphs) {
    for (const int one_in : {2, 4, 16, 64, 256}) {
      const auto distance = plain_distances(topology, n, one_in, one_in < 64 ? 4 : 1, 0);
      EXPECT_LT(distance[3], 0.5 * distance[1] + 1e-12) << topology << ", one in " << one_in;
      EXPECT_LT(distance[3], 1e-3) << topology << ", one in " << one_in;
    }
  }
}

TEST(ChocoScheme, NoisyGradientsDoNotDriveWorkersApartOverAHundredPeriods) {
  for (const auto& [topology, n] : kGraphs) {
    for (const int one_in : {4, 16}) {
      const double noise = 0.1;
      const auto distance = plain_distances(topology, n, one_in, 4, noise);
      EXPECT_LT(distance[3], 1.5 * distance[0]) << topology << ", one in " << one_in;
      // A worker alone would be so far from where it began.
      EXPECT_LT(distance[3], 0.2 * noise * std::sqrt(100.0 * one_in)) << topology << ", one in " << one_in;
    }
  }
}

TEST(ChocoScheme, IsItsEquationWithEveryRule) {
  for (const ChocoCase& the : {ChocoCase{},
                               {.topology = "complete", .gamma = 0.5},
                               {.n = 3, .one_in = 1},
                               {.gamma = 0.2, .adam = true},
                               {.narrow = true},
                               {.gamma = 0.3, .clip = 5}}) {
    SCOPED_TRACE(std::string(the.topology) + (the.adam ? " adam" : "") + (the.narrow ? " bf16" : ""));
    const AccumAdamW rule{.lr = kChocoLr, .eps = 0.5, .weight_decay = 0, .window = 3};
    const double gamma = the.gamma != 0 ? the.gamma : default_gamma(the.one_in);
    const auto x = plain_choco(the, rule, gamma);
    flock(the.n, [&](int i, World& world) {
      const at::ScalarType type = the.narrow ? at::kBFloat16 : at::kFloat;
      const Tensor p = at::full({kChocoFirst}, 0.5, type).set_requires_grad(true);
      const Tensor q = at::full({kChocoSecond}, 0.5, type).set_requires_grad(true);
      Optimizer optimizer({p, q}, the.adam ? Rule(rule) : Rule(SGD{.lr = kChocoLr}),
                          {.topology = the.topology,
                           .scheme = {"choco", {{"gamma", the.gamma}}},
                           .one_in = the.one_in,
                           .clip = the.clip},
                          world);
      for (int t = 1; t <= kChocoSteps; ++t) {
        p.mutable_grad() = pulls(the.narrow, i, t, 0, kChocoFirst).to(type);
        q.mutable_grad() = pulls(the.narrow, i, t, kChocoFirst, kChocoSecond).to(type);
        optimizer.step();
      }
      const Tensor now = at::cat({p.detach(), q.detach()}).to(at::kFloat);
      for (std::size_t c = 0; c < kChocoSize; ++c) {
        const double should = x[static_cast<std::size_t>(i)][c];
        ASSERT_NEAR(now.const_data_ptr<float>()[c], should,
                    5e-5 + (the.narrow ? 0x1p-8 * std::abs(should) : 0))
            << "worker " << i << " value " << c;
      }
      EXPECT_EQ(optimizer.statistics().aborted, 0U);
    });
  }
}

// SQuARM-SGD and SPARQ-SGD on f_i(x) = 1/2 (x - c_i)^T A_i (x - c_i), with two groups of
// parameters, each a block with a learning rate of its own.
struct SquarmCase {
  const char* topology = "ring";
  double momentum = 0.9;
  int every = 2;
  int one_in = 4;
  double trigger = 0;
};

constexpr int kSquarmWorkers = 5, kSquarmSteps = 20;
constexpr std::array<std::size_t, 2> kSquarmSizes{15, 25};
constexpr std::array<double, 2> kSquarmLr{0.05, 0.02};

struct Quadratic {
  explicit Quadratic(int worker) {
    std::mt19937_64 random(static_cast<std::uint64_t>(worker) + 1);
    std::normal_distribution<double> normal;
    for (auto& row : factor) std::ranges::generate(row, [&] { return normal(random); });
    std::ranges::generate(centre, [&] { return normal(random); });
  }
  // A (x - c), A = 1/2 + F^T F / n
  std::vector<double> gradient(const std::vector<double>& x) const {
    std::vector<double> g(kValues);
    for (std::size_t c = 0; c < kValues; ++c) g[c] = (x[c] - centre[c]) / 2;
    for (const auto& row : factor) {
      double along = 0;
      for (std::size_t c = 0; c < kValues; ++c) along += row[c] * (x[c] - centre[c]) / kValues;
      for (std::size_t c = 0; c < kValues; ++c) g[c] += along * row[c];
    }
    return g;
  }
  static constexpr std::size_t kValues = 40;
  std::array<std::array<double, kValues>, kValues> factor{};
  std::array<double, kValues> centre{};
};

struct PlainSquarm {
  std::vector<std::vector<double>> x;  // by worker
  std::vector<std::size_t> sent;       // exchanges in which the worker has sent
};

PlainSquarm plain_squarm(const SquarmCase& the) {
  constexpr std::size_t n = kSquarmWorkers, first = kSquarmSizes[0];
  const Graph graph = make_schedule(the.topology, kSquarmWorkers).rounds.front();
  const auto lr = [](std::size_t c) { return kSquarmLr[c < first ? 0 : 1]; };
  PlainSquarm all{std::vector(n, std::vector<double>(Quadratic::kValues)), std::vector<std::size_t>(n)};
  auto& x = all.x;
  auto copy = x, v = x;
  for (int t = 1; t <= kSquarmSteps; ++t) {
    for (std::size_t i = 0; i < n; ++i) {
      const std::vector<double> g = Quadratic(static_cast<int>(i)).gradient(x[i]);
      for (std::size_t c = 0; c < g.size(); ++c) {
        v[i][c] = the.momentum * v[i][c] + g[c];
        x[i][c] -= lr(c) * (the.momentum * v[i][c] + g[c]);
      }
    }
    if (t % the.every != 0) continue;
    for (std::size_t i = 0; i < n; ++i) {
      double far = 0;
      for (std::size_t c = 0; c < x[i].size(); ++c) far += std::pow((x[i][c] - copy[i][c]) / lr(c), 2);
      EXPECT_GT(std::abs(far / the.trigger - 1), 1e-3) << "in fp32 it may fall on the other side";
      if (far <= the.trigger) continue;
      ++all.sent[i];
      for (std::size_t from = 0, g = 0; g < kSquarmSizes.size(); from += kSquarmSizes[g++]) {
        std::vector<std::size_t> order(kSquarmSizes[g]);
        std::iota(order.begin(), order.end(), from);
        std::ranges::sort(order, std::greater(),
                          [&](std::size_t c) { return std::abs(x[i][c] - copy[i][c]); });
        order.resize(TopK{static_cast<std::uint32_t>(the.one_in)}.chosen_of(order.size()));
        for (const std::size_t c : order) copy[i][c] = x[i][c];
      }
    }
    for (std::size_t c = 0; c < Quadratic::kValues; ++c) {
      std::vector<double> at;
      for (const auto& of : copy) at.push_back(of[c]);
      const std::vector<double> s = mixed(at, graph);
      for (std::size_t i = 0; i < n; ++i) x[i][c] += default_gamma(the.one_in) * (s[i] - at[i]);
    }
  }
  return all;
}

TEST(ChocoScheme, WithATriggerItIsSquarmAndSparq) {
  for (const SquarmCase& the : {SquarmCase{.trigger = 2500},
                                {.topology = "complete", .one_in = 2, .trigger = 1500},
                                {.momentum = 0, .every = 1, .trigger = 300},
                                {.momentum = 0, .every = 4, .one_in = 1, .trigger = 300}}) {
    SCOPED_TRACE(testing::Message() << the.topology << ", momentum " << the.momentum << ", every "
                                    << the.every << ", one in " << the.one_in);
    const PlainSquarm plain = plain_squarm(the);
    const std::size_t sent = std::accumulate(plain.sent.begin(), plain.sent.end(), std::size_t{0});
    const auto most = static_cast<std::size_t>(kSquarmWorkers * kSquarmSteps / the.every);
    EXPECT_TRUE(most / 4 < sent && sent < most - most / 4) << sent << " of " << most;
    std::size_t bytes = 0;
    const TopK top{static_cast<std::uint32_t>(the.one_in)};
    for (const std::size_t size : kSquarmSizes) bytes += 4 * top.words(size);
    flock(kSquarmWorkers, [&](int i, World& world) {
      const Tensor p = parameter({std::int64_t{kSquarmSizes[0]}}),
                   q = parameter({std::int64_t{kSquarmSizes[1]}});
      Optimizer optimizer({torch::optim::OptimizerParamGroup({p}), torch::optim::OptimizerParamGroup({q})},
                          SGD{.momentum = the.momentum, .nesterov = the.momentum > 0},
                          {.topology = the.topology,
                           .scheme = {"choco", {{"trigger", the.trigger}}},
                           .one_in = the.one_in,
                           .every = the.every},
                          world);
      for (std::size_t g = 0; g < kSquarmLr.size(); ++g)
        optimizer.param_groups()[g].options().set_lr(kSquarmLr[g]);
      const auto x = [&] {
        const Tensor now = at::cat({p.detach(), q.detach()}).to(at::kDouble);
        return std::vector(now.const_data_ptr<double>(), now.const_data_ptr<double>() + now.numel());
      };
      const std::uint64_t before = optimizer.statistics().payload_sent;
      for (int t = 1; t <= kSquarmSteps; ++t) {
        const Tensor g = at::tensor(Quadratic(i).gradient(x()), at::kDouble).to(at::kFloat);
        p.mutable_grad() = g.slice(0, 0, p.numel()).clone();
        q.mutable_grad() = g.slice(0, p.numel()).clone();
        optimizer.step();
      }
      const std::vector<double> now = x();
      const auto k = static_cast<std::size_t>(i);
      for (std::size_t c = 0; c < now.size(); ++c)
        ASSERT_NEAR(now[c], plain.x[k][c], 2e-5) << "worker " << i << " value " << c;
      const std::size_t neighbours = std::string_view(the.topology) == "ring" ? 2U : kSquarmWorkers - 1U;
      EXPECT_EQ(optimizer.statistics().payload_sent - before, plain.sent[k] * neighbours * bytes);
      expect_undisturbed(optimizer);
    });
  }
}

// Without gradients, workers agree on blocks of several sizes, and on a group added later. The sum
// stays.
TEST(ChocoScheme, WorkersComeTogetherAlsoInAGroupThatIsAdded) {
  flock(4, [](int i, World& world) {
    const Tensor p = parameter({150'001}), q = parameter({9});
    Optimizer optimizer({p}, SGD{.lr = 1}, {.topology = "ring", .scheme = "choco", .one_in = 4}, world);
    const auto go = [&](int steps) {
      for (int t = 0; t < steps; ++t) optimizer.step();
    };
    p.mutable_grad() = at::full({150'001}, static_cast<double>(i));
    go(1);
    p.mutable_grad() = Tensor();
    go(100);
    EXPECT_TRUE(is_all(p, -1.5));
    optimizer.add_param_group(torch::optim::OptimizerParamGroup({q}));
    q.mutable_grad() = at::full({9}, static_cast<double>(2 * i));
    go(1);
    q.mutable_grad() = Tensor();
    go(200);
    EXPECT_TRUE(is_all(p, -1.5));
    EXPECT_TRUE(at::allclose(q.detach(), at::full({9}, -3.0), 1e-4, 1e-4)) << q;
    expect_undisturbed(optimizer);
  });
}

// In this state, the two ends of an edge have different copies, as after a swap that was in doubt
// when the state was saved.
TEST(ChocoScheme, DifferentCopiesBeginAnewAndKeepTheSum) {
  flock(4, [](int i, World& world) {
    const Tensor p = parameter({1000});
    Optimizer optimizer({p}, SGD{.lr = 1}, {.topology = "ring", .scheme = "choco", .one_in = 4}, world);
    p.mutable_grad() = at::full({1000}, static_cast<double>(i));
    optimizer.step();
    p.mutable_grad() = Tensor();
    OptimizerState state = optimizer.state();
    const Tensor untouched = state.tensors.at(i == 3   ? "published.2.0.0"
                                              : i == 2 ? "replica.3.0.0"
                                                       : "steps");
    if (i == 1) state.tensors.at("published.2.0.0").add_(7);  // worker 2 knows nothing of it
    optimizer.set_state(state);
    const OptimizerState now = optimizer.state();
    if (i == 1 || i == 2) {  // both are worker 1's parameters
      const std::string other = std::to_string(3 - i);
      EXPECT_TRUE(
          now.tensors.at("published." + other + ".0.0").equal(now.tensors.at("replica." + other + ".0.0")));
    }
    if (i >= 2) {
      EXPECT_TRUE(now.tensors.at(i == 3 ? "published.2.0.0" : "replica.3.0.0").equal(untouched));
    }
    for (int t = 0; t < 150; ++t) optimizer.step();
    EXPECT_TRUE(is_all(p, -1.5)) << p;
    nobody_leaves_yet(optimizer);
  });
}

// A copy that is not finite would spread with the first exchange of a worker that is finite again.
TEST(ChocoScheme, CopiesThatAreNotFiniteAreNotMixed) {
  for (const bool of_a_file : {false, true}) {
    flock(4, [&](int i, World& world) {
      world.log = [](Level, const std::string&) {};
      const Tensor p = parameter({40, 25});
      Optimizer optimizer({p}, SGD{.lr = 1}, {.topology = "ring", .scheme = "choco", .one_in = 4}, world);
      const auto set = [&](double value) { p.detach().fill_(value); };
      const auto steps = [&](int count) {
        for (int t = 0; t < count; ++t) optimizer.step();
      };
      if (of_a_file) {
        OptimizerState state = copy_of(optimizer.state());
        for (auto& [name, tensor] : state.tensors) {
          if (name.starts_with("published.") || name.starts_with("replica.")) tensor.fill_(NAN);
        }
        optimizer.set_state(state);
      } else {
        set(i == 0 ? NAN : 1);
        optimizer.begin_again();
        steps(5);
        EXPECT_EQ(p.isfinite().all().item<bool>(), i != 0);
      }
      nobody_leaves_yet(optimizer);  // the others do not wait for the worker with NaNs
      set(i);
      steps(400);
      EXPECT_TRUE(at::allclose(p, at::full_like(p, 1.5), 0, 0.05)) << p[0];
      nobody_leaves_yet(optimizer);
    });
  }
}

}  // namespace
}  // namespace starling
