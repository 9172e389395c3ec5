// random-k in the optimizer, beside plain loops in double over single values: with masters,
// clipping, both orders, around torch's optimizer, and between nodes.
#include "starling/kernels/mask.h"
#include "starling/topology/schedules.h"
#include "tests/optim/flock.h"

namespace starling {
namespace {

using at::Tensor;

constexpr int kSteps = 25;
constexpr std::int64_t kFirst = 1000, kSecond = 2500;  // neither ends where a run does
constexpr std::size_t kSize = kFirst + kSecond;
constexpr double kLr = 0.1;

// Exact in bf16, whatever x is.
double gradient(int i, int t, std::size_t c) {
  return std::round(64 * centre(i, t)) / 64 * (1 + static_cast<double>(c % 2));
}

struct Case {
  std::string scheme;
  std::string topology;
  at::ScalarType type = at::kFloat;
  double clip = 0;
  bool around = false;
};

// x of every worker after kSteps of SGD.
std::vector<std::vector<double>> plain_loops(const Case& the, std::uint32_t one_in) {
  const Schedule schedule = make_schedule(the.topology, kWorkers);
  std::vector<std::vector<double>> x(kWorkers, std::vector<double>(kSize, 0.5));
  const auto mix = [&](int t) {
    const auto round = static_cast<std::uint64_t>(t - 1), period = std::uint64_t{schedule.rounds.size()};
    const Mask mask = Mask::of_round(one_in, 0, round % period, round / period);
    for (std::size_t c = 0; c < kSize; ++c) {
      if (c / 256 % one_in != mask.turn) continue;
      double next[kWorkers];
      for (std::size_t i = 0; i < kWorkers; ++i) {
        next[i] = x[i][c];
        for (const Neighbour& j : schedule.at(round).neighbours[i])
          next[i] += j.weight * (x[static_cast<std::size_t>(j.rank)][c] - x[i][c]);
      }
      for (std::size_t i = 0; i < kWorkers; ++i) x[i][c] = next[i];
    }
  };
  for (int t = 1; t <= kSteps; ++t) {
    if (the.scheme == "cta") mix(t);
    for (int i = 0; i < kWorkers; ++i) {
      double norm = 0;
      for (std::size_t c = 0; c < kSize; ++c) norm += std::pow(gradient(i, t, c), 2);
      const double scale = the.clip == 0 ? 1 : std::min(1.0, the.clip / std::sqrt(norm));
      for (std::size_t c = 0; c < kSize; ++c)
        x[static_cast<std::size_t>(i)][c] -= kLr * scale * gradient(i, t, c);
    }
    if (the.scheme == "atc") mix(t);
  }
  return x;
}

Tensor gradients(int i, int t, std::int64_t from, std::int64_t count) {
  Tensor g = at::empty({count});
  for (std::int64_t c = 0; c < count; ++c)
    g.mutable_data_ptr<float>()[c] = static_cast<float>(gradient(i, t, static_cast<std::size_t>(from + c)));
  return g;
}

TEST(RandomK, IsItsEquationInEveryCombination) {
  for (const Case& the : {Case{.scheme = "cta", .topology = "base-2"},
                          {.scheme = "cta", .topology = "complete"},
                          {.scheme = "atc", .topology = "base-2"},
                          {.scheme = "atc", .topology = "ring"},
                          {.scheme = "cta", .topology = "base-2", .type = at::kBFloat16},
                          {.scheme = "atc", .topology = "complete", .type = at::kHalf},
                          {.scheme = "cta", .topology = "ring", .clip = 20},
                          {.scheme = "cta", .topology = "base-2", .around = true},
                          {.scheme = "atc", .topology = "base-2", .around = true}}) {
    constexpr int kOneIn = 3;
    const auto x = plain_loops(the, kOneIn), all = plain_loops(the, 1);
    EXPECT_GT(std::abs(x[0][0] - all[0][0]), 1e-3);  // it is not the same without a mask
    flock(kWorkers, [&](int i, World& world) {
      const auto narrow = [&](std::int64_t n) {
        return at::full({n}, 0.5, the.type).set_requires_grad(true);
      };
      const Tensor p = narrow(kFirst), q = narrow(kSecond);
      const Options options{
          .topology = the.topology, .scheme = the.scheme, .one_in = kOneIn, .clip = the.clip};
      torch::optim::SGD inner({p, q}, torch::optim::SGDOptions(kLr));
      const auto optimizer =
          the.around ? std::make_unique<Optimizer>(inner, options, world)
                     : std::make_unique<Optimizer>(std::vector<Tensor>{p, q}, SGD{.lr = kLr}, options, world);
      for (int t = 1; t <= kSteps; ++t) {
        p.mutable_grad() = gradients(i, t, 0, kFirst).to(the.type);
        q.mutable_grad() = gradients(i, t, kFirst, kSecond).to(the.type);
        optimizer->step();
      }
      const Tensor now = at::cat({p.detach(), q.detach()}).to(at::kFloat);
      const double rounding = the.type == at::kFloat ? 0 : the.type == at::kHalf ? 0x1p-11 : 0x1p-8;
      for (std::size_t c = 0; c < kSize; ++c) {
        const double should = x[static_cast<std::size_t>(i)][c];
        ASSERT_NEAR(now.const_data_ptr<float>()[c], should, 1e-5 + rounding * std::abs(should))
            << the.scheme << " " << the.topology << " " << the.type << " worker " << i << " value " << c;
      }
    });
  }
}

// Nodes train as workers with the nodes' mean gradients do.
TEST(RandomK, BetweenNodes) {
  std::vector<Tensor> ends(2);
  const auto mean = [](int k, int t) {
    return (gradients(2 * k, t, 0, 3000) + gradients(2 * k + 1, t, 0, 3000)) / 2;
  };
  flock(2, [&](int k, World& world) {
    const Tensor p = parameter({3000}, 0.5);
    Optimizer optimizer({p}, SGD{.lr = kLr}, {.topology = "complete", .one_in = 3}, world);
    for (int t = 1; t <= kSteps; ++t) {
      p.mutable_grad() = mean(k, t);
      optimizer.step();
    }
    ends[static_cast<std::size_t>(k)] = p.detach();
  });
  flock(4, [&](int i, World& world) {
    const Tensor p = parameter({3000}, 0.5);
    Optimizer optimizer({p}, SGD{.lr = kLr},
                        {.topology = "complete", .one_in = 3, .hierarchy = "node", .workers_per_node = 2},
                        world);
    for (int t = 1; t <= kSteps; ++t) {
      p.mutable_grad() = gradients(i, t, 0, 3000);
      optimizer.step();
    }
    EXPECT_TRUE(at::allclose(p.detach(), ends[static_cast<std::size_t>(i) / 2], 1e-5, 1e-6)) << i;
  });
}

}  // namespace
}  // namespace starling
