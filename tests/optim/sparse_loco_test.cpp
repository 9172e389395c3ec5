// SparseLoCo's few values beside plain loops in double. scheme_equations_test.cpp has all values,
// equivalences_test.cpp special cases, top_k_message_test.cpp the message, resume_test.cpp saving.
#include <random>

#include "starling/topology/schedules.h"
#include "tests/mixed.h"
#include "tests/optim/every_scheme.h"
#include "tests/optim/fragile_network.h"

namespace starling {
namespace {

using namespace std::chrono_literals;
using at::Tensor;

constexpr int kLocoWorkers = 5, kLocoLocal = 3, kLocoRounds = 14;
constexpr double kLocoInnerLr = 0.1;
const std::vector<std::vector<std::int64_t>> kLocoShapes{{70, 60}, {37}, {3}};
constexpr std::size_t kLocoValues = 70 * 60 + 37 + 3;

// A random quadratic of each worker: a/2 (x - b)^2 for each value.
struct LocoQuadratic {
  std::vector<double> a, b;
  double gradient(std::size_t c, double x) const { return a[c] * (x - b[c]); }
};

std::vector<LocoQuadratic> loco_quadratics() {
  std::mt19937_64 random(34);
  std::uniform_real_distribution<float> curvature(0.5F, 1.5F);
  std::normal_distribution<float> centre;
  std::vector<LocoQuadratic> all(kLocoWorkers);
  for (LocoQuadratic& one : all) {
    for (std::size_t c = 0; c < kLocoValues; ++c)
      one.a.push_back(curvature(random)), one.b.push_back(centre(random));
  }
  return all;
}

struct LocoCase {
  const char* topology = "complete";
  int one_in = 16;
  const char* sent_values = "2-bit";
  double outer_lr = 1, error_decay = 0.9;
  at::ScalarType type = at::kFloat;

  Options options() const {
    return {
        .topology = topology,
        .scheme = {"sparse-loco", {{"error_decay", error_decay}, {"sent_values", std::string(sent_values)}}},
        .one_in = one_in,
        .every = kLocoLocal,
        .outer_lr = outer_lr};
  }
};

struct PlainLoco {
  std::vector<double> x = std::vector<double>(kLocoValues, 0.25), error = std::vector<double>(kLocoValues);
};

// The part of e from `begin` on that is sent: by chunks of 4096.
void choose_part(const LocoCase& the, const std::vector<double>& e, std::size_t begin, std::size_t length,
                 std::vector<double>& q) {
  const auto one_in = static_cast<std::size_t>(the.one_in);
  std::vector<std::size_t> chosen;
  for (std::size_t at = 0; at < length; at += 4096) {
    std::vector<std::size_t> order(std::min<std::size_t>(4096, length - at));
    std::iota(order.begin(), order.end(), begin + at);
    std::ranges::stable_sort(order, std::greater(), [&](std::size_t c) { return std::abs(e[c]); });
    order.resize((order.size() + one_in - 1) / one_in);
    chosen.insert(chosen.end(), order.begin(), order.end());
  }
  for (const std::size_t c : chosen) q[c] = e[c];
  if (the.sent_values == std::string("fp32") || chosen.size() <= 4) return;
  const auto n = static_cast<double>(chosen.size());
  double mean = 0, squares = 0;
  for (const std::size_t c : chosen) mean += e[c] / n;
  for (const std::size_t c : chosen) squares += std::pow(e[c] - mean, 2);
  const double width = 1.5 * std::sqrt(squares / (n - 1));
  const auto bin = [&](double value) { return std::clamp(std::round((value - mean) / width), -2.0, 1.0); };
  std::map<double, std::pair<double, double>> bins;
  for (const std::size_t c : chosen) bins[bin(e[c])].first += e[c], bins[bin(e[c])].second += 1;
  for (const std::size_t c : chosen) q[c] = bins[bin(e[c])].first / bins[bin(e[c])].second;
}

std::vector<PlainLoco> plain_loco(const LocoCase& the) {
  const Schedule schedule = make_schedule(the.topology, kLocoWorkers);
  const auto all = loco_quadratics();
  std::vector<PlainLoco> workers(kLocoWorkers);
  std::vector<std::vector<double>> theta(kLocoWorkers, workers[0].x);
  const auto turns = static_cast<std::size_t>(8 * the.one_in);
  for (int round = 0; round < kLocoRounds; ++round) {
    std::vector<std::vector<double>> q(kLocoWorkers, std::vector<double>(kLocoValues));
    for (std::size_t i = 0; i < kLocoWorkers; ++i) {
      PlainLoco& one = workers[i];
      for (std::size_t c = 0; c < kLocoValues; ++c) {
        for (int t = 0; t < kLocoLocal; ++t) one.x[c] -= kLocoInnerLr * all[i].gradient(c, one.x[c]);
        one.error[c] = the.error_decay * one.error[c] + theta[i][c] - one.x[c];
      }
      std::size_t begin = 0;
      for (const auto& shape : kLocoShapes) {
        const auto length = static_cast<std::size_t>(shape.size() == 2 ? shape[0] * shape[1] : shape[0]);
        choose_part(the, one.error, begin, length, q[i]);
        begin += length;
      }
      for (std::size_t c = 0; c < kLocoValues; ++c) one.error[c] -= q[i][c];
    }
    const Graph& graph = schedule.at(round);
    const std::size_t turn = static_cast<std::size_t>(round) / schedule.rounds.size() % turns;
    for (std::size_t c = 0; c < kLocoValues; ++c) {
      std::vector<double> before, sent;
      for (std::size_t i = 0; i < kLocoWorkers; ++i) before.push_back(theta[i][c]), sent.push_back(q[i][c]);
      const std::vector<double> together = mixed(before, graph), move = mixed(sent, graph);
      for (std::size_t i = 0; i < kLocoWorkers; ++i)
        workers[i].x[c] = theta[i][c] =
            (c % turns == turn ? together[i] : before[i]) - the.outer_lr * move[i];
    }
  }
  return workers;
}

class SparseLocoEquation : public testing::TestWithParam<LocoCase> {};

TEST_P(SparseLocoEquation, Holds) {
  const LocoCase& the = GetParam();
  const auto all = loco_quadratics();
  std::vector<std::vector<Tensor>> ends(kLocoWorkers), errors(kLocoWorkers);
  flock(kLocoWorkers, [&](int i, World& world) {
    std::vector<Tensor> parameters;
    for (const auto& shape : kLocoShapes) parameters.push_back(parameter(shape, 0.25, the.type));
    Optimizer optimizer(parameters, SGD{.lr = kLocoInnerLr}, the.options(), world);
    const LocoQuadratic& mine = all[static_cast<std::size_t>(i)];
    const auto masters = [&](const std::string& kind) {
      std::vector<Tensor> found;
      const OptimizerState state = optimizer.state();
      for (std::size_t k = 0; k < parameters.size(); ++k)
        found.push_back(state.tensors.at(kind + ".0." + std::to_string(k)).detach().clone().reshape({-1}));
      return found;
    };
    const std::string kind = the.type == at::kFloat ? "model" : "master";
    for (int t = 0; t < kLocoRounds * kLocoLocal; ++t) {
      std::size_t c = 0;
      const auto x = masters(kind);
      for (std::size_t k = 0; k < parameters.size(); ++k) {
        // A master of 0 has not begun yet.
        const Tensor from = t == 0 ? parameters[k].detach().to(at::kFloat).reshape({-1}) : x[k];
        Tensor g = at::empty_like(from);
        for (std::int64_t at = 0; at < g.numel(); ++at, ++c)
          g.mutable_data_ptr<float>()[at] =
              static_cast<float>(mine.gradient(c, from.const_data_ptr<float>()[at]));
        parameters[k].mutable_grad() = g.view(parameters[k].sizes()).to(the.type);
      }
      optimizer.step();
    }
    ends[static_cast<std::size_t>(i)] = masters(kind);
    errors[static_cast<std::size_t>(i)] = masters("error");
    expect_undisturbed(optimizer);
  });
  if (the.topology == std::string("complete")) {
    for (std::size_t i = 1; i < kLocoWorkers; ++i) {
      for (std::size_t k = 0; k < kLocoShapes.size(); ++k)
        EXPECT_TRUE(at::equal(ends[i][k], ends[0][k])) << "worker " << i << ", parameter " << k;
    }
  }
  if (the.type != at::kFloat) return;  // narrow gradients are rounded
  const auto plain = plain_loco(the);
  for (std::size_t i = 0; i < kLocoWorkers; ++i) {
    const auto expect = [&](const std::vector<Tensor>& found, const std::vector<double>& should) {
      const Tensor joined = at::cat(found).to(at::kDouble);
      const Tensor wanted = at::tensor(should, at::kDouble);
      EXPECT_TRUE(at::allclose(joined, wanted, 1e-4, 1e-5))
          << "worker " << i << ": " << (joined - wanted).abs().max().item<double>();
    };
    expect(ends[i], plain[i].x);
    expect(errors[i], plain[i].error);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, SparseLocoEquation,
                         testing::Values(LocoCase{}, LocoCase{.sent_values = "fp32"},
                                         LocoCase{.one_in = 64, .outer_lr = 0.7, .error_decay = 1},
                                         LocoCase{.topology = "ring", .one_in = 4},
                                         LocoCase{.topology = "base-2", .one_in = 2, .sent_values = "fp32"},
                                         LocoCase{.type = at::kBFloat16}),
                         [](const auto& one) {
                           std::string name = one.param.topology;
                           std::ranges::replace(name, '-', '_');
                           return name + "_one_in_" + std::to_string(one.param.one_in) + "_" +
                                  (one.param.sent_values == std::string("fp32") ? "fp32" : "levels") +
                                  (one.param.type == at::kFloat ? "" : "_bf16");
                         });

// A chunk of one value sends it.
TEST(SparseLoco, WhoseChunksSendAllIsDiLoCoWithOuterSgd) {
  const auto ends = [](const Options& options) {
    return results_of(4, [&](int i, World& world) {
      std::vector<Tensor> all;
      for (int k = 0; k < 6; ++k) all.push_back(parameter({1}, 0.1 * k));
      Optimizer optimizer(all, SGD{.lr = 0.1, .momentum = 0.9}, options, world);
      for (int t = 0; t < 12; ++t) {
        for (std::size_t k = 0; k < all.size(); ++k)
          all[k].mutable_grad() = (0.5 + 0.3 * i) * (all[k].detach() - centre(i, t + static_cast<int>(k)));
        optimizer.step();
      }
      nobody_leaves_yet(optimizer);
      return at::cat(all).detach();
    });
  };
  const auto few =
      ends({.topology = "complete", .scheme = "sparse-loco", .one_in = 16, .every = 3, .outer_lr = 0.7});
  const auto diloco =
      ends({.scheme = "local", .mean_every = 3, .outer = "sgd", .outer_lr = 0.7, .outer_momentum = 0});
  for (std::size_t i = 0; i < few.size(); ++i)
    EXPECT_TRUE(at::allclose(few[i], diloco[i], 1e-5, 1e-6)) << few[i] << diloco[i];
}

// Indices of 12 bits, values of 2, four levels, and a sample.
TEST(SparseLoco, SendsTwoBytesForEachOfFewValues) {
  flock(3, [](int, World& world) {
    const Tensor x = parameter({4096});
    Optimizer optimizer({x}, SGD{}, {.topology = "complete", .scheme = "sparse-loco", .one_in = 64}, world);
    for (int t = 0; t < 10; ++t) optimizer.step();
    EXPECT_EQ(optimizer.statistics().payload_sent, 10U * 2 * sizeof(float) * (64 / 2 + 4 + 4096 / (8 * 64)));
    nobody_leaves_yet(optimizer);
  });
}

TEST(SparseLoco, RefusesATurnThatThereIsNot) {
  Optimizer optimizer({parameter({100})}, SGD{}, {.scheme = "sparse-loco", .one_in = 2}, World::alone());
  for (const double turn : {16.0, -1.0, 0.5, std::nan("")}) {
    OptimizerState state = copy_of(optimizer.state());
    state.tensors.at("sample").fill_(turn);
    EXPECT_THAT(refusal([&] { optimizer.set_state(state); }),
                testing::HasSubstr("wants a turn from 0 to 15"));
  }
}

// mean(theta) - mean(e) is what the first step has made it, whatever is lost. The samples bring
// theta together again.
TEST(SparseLoco, LosesNothingWithALostExchangeAndBringsWorkersTogether) {
  constexpr int kMany = 4;
  for (const std::string sent_values : {"2-bit", "fp32"}) {
    SCOPED_TRACE(sent_values);
    Tensor errors = at::zeros({1000});
    std::uint64_t aborted = 0;  // one worker at a time adds to them
    fragile_flock(kMany, [&](int rank, World& world, VirtualTime& time, FragileNetwork& network) {
      const Tensor x = parameter({40, 25});
      const auto gradient = [](int of) {
        return at::sin(at::arange(1000, at::kFloat) * (1.0 + of)).view({40, 25});
      };
      Optimizer optimizer({x}, SGD{.lr = 1},
                          {.topology = "complete",
                           .scheme = {"sparse-loco", {{"error_decay", 1}, {"sent_values", sent_values}}},
                           .one_in = 4,
                           .outer_lr = 1},
                          world);
      x.mutable_grad() = gradient(rank);
      optimizer.step();
      if (rank == 0) network.break_often(time, 60);
      for (int t = 0; t < 200; ++t) {
        time.sleep(10ms);
        x.mutable_grad() = at::zeros_like(x.detach());
        optimizer.step();
      }
      errors += optimizer.state().tensors.at("error.0.0").view({1000}) / kMany;
      aborted += optimizer.statistics().aborted + optimizer.statistics().late;
      nobody_leaves_yet(optimizer);
      const Consensus average(optimizer);
      EXPECT_LT(average.distance(), 1e-5);
      Tensor mean = at::zeros({1000});
      for (int of = 0; of < kMany; ++of) mean -= gradient(of).view({1000}) / kMany;
      const Tensor kept = x.detach().view({1000}) - errors;
      EXPECT_TRUE(at::allclose(kept, mean, 0, 1e-4)) << (kept - mean).abs().max();
    });
    EXPECT_GT(aborted, 0U) << "nothing was lost";
    if (sent_values == "fp32") {
      EXPECT_LT(errors.abs().max().item<double>(), 1e-5) << "all was sent";
    }
  }
}

}  // namespace
}  // namespace starling
