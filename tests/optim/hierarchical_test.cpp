// Gossip between nodes whose workers share one optimizer state.
#include "tests/optim/flock.h"

namespace starling {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

constexpr int kNode = 2;                                          // workers
constexpr std::int64_t kSizes[] = {100'000, 60'000, 40, 90'001};  // several blocks of 256 KB

const Options kHierarchy{.hierarchy = "node", .workers_per_node = kNode};

std::vector<Tensor> several_blocks() {
  std::vector<Tensor> all;
  for (const std::int64_t size : kSizes)
    all.push_back((at::sin(at::arange(size, at::kFloat)) * 0.1).set_requires_grad(true));
  return all;
}

// The gradient of worker i in step t.
Tensor gradient(const Tensor& x, int i, int t) { return x.detach() - centre(i, t); }

std::vector<float> flat(const std::vector<Tensor>& tensors) {
  std::vector<float> all;
  for (const Tensor& t : tensors) {
    const Tensor dense = t.detach().contiguous();
    all.insert(all.end(), dense.const_data_ptr<float>(), dense.const_data_ptr<float>() + dense.numel());
  }
  return all;
}

// Ends of a run, by worker.
using Ends = std::vector<std::vector<float>>;

Ends hierarchy(int n, const Rule& rule, int steps, Options options = kHierarchy) {
  return results_of(n, [&](int i, World& world) {
    const auto x = several_blocks();
    Optimizer optimizer(x, rule, options, world);
    for (int t = 1; t <= steps; ++t) {
      for (const Tensor& p : x) p.mutable_grad() = gradient(p, i, t);
      optimizer.step();
    }
    nobody_leaves_yet(optimizer);
    return flat(x);
  });
}

// One worker for each node, with the mean of its workers' gradients.
Ends nodes(int n, const Rule& rule, int steps, Options options = {}) {
  return results_of(n / kNode, [&](int k, World& world) {
    const auto x = several_blocks();
    Optimizer optimizer(x, rule, options, world);
    for (int t = 1; t <= steps; ++t) {
      for (const Tensor& p : x)
        p.mutable_grad() = (gradient(p, kNode * k, t) + gradient(p, kNode * k + 1, t)) / kNode;
      optimizer.step();
    }
    nobody_leaves_yet(optimizer);
    return flat(x);
  });
}

TEST(Hierarchical, IsGossipBetweenNodesOfTheirMeanGradients) {
  for (const Rule& rule : {Rule(SGD{.lr = 0.1, .momentum = 0.9}), Rule(AdamW{.lr = 0.05}),
                           Rule(AccumAdam{.lr = 0.05, .window = 3})}) {
    for (const Wire wire : {Wire::fp32, Wire::int8}) {
      Options options = kHierarchy, plain;
      options.wire = plain.wire = wire;
      const Ends ends = hierarchy(4, rule, 12, options), expected = nodes(4, rule, 12, plain);
      for (int i = 0; i < 4; ++i) EXPECT_EQ(ends.at(i), expected.at(i / kNode)) << "worker " << i;
      EXPECT_NE(expected.at(0), expected.at(1));
    }
  }
}

TEST(Hierarchical, InPlainLoops) {
  constexpr int kSteps = 10;
  const double lr = 0.1, momentum = 0.9;
  double x[2] = {0.1 * std::sin(1.0), 0.1 * std::sin(1.0)}, m[2] = {0, 0},
         sent[2];  // of the parameter at index 1
  sent[0] = x[0], sent[1] = x[1];
  for (int t = 1; t <= kSteps; ++t) {
    double g[2];
    for (int k : {0, 1}) g[k] = x[k] - (centre(2 * k, t) + centre(2 * k + 1, t)) / 2;
    for (int k : {0, 1}) {
      m[k] = momentum * m[k] + g[k];
      x[k] += 0.5 * (sent[1 - k] - sent[k]) - lr * m[k];
    }
    sent[0] = x[0], sent[1] = x[1];
  }
  const Ends ends = hierarchy(4, SGD{.lr = lr, .momentum = momentum}, kSteps);
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(ends.at(i)[1], x[i / kNode], 1e-6);
}

TEST(Hierarchical, ThreeNodesThatTakeTheirMeanAreAGroup) {
  Options options = kHierarchy, plain;
  options.topology = plain.topology = "complete";
  const Ends ends = hierarchy(6, AdamW{.lr = 0.05}, 8, options),
             expected = nodes(6, AdamW{.lr = 0.05}, 8, plain);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(ends.at(i), expected.at(i / kNode));
}

TEST(Hierarchical, BackwardAccumulationAndClippingAreOfTheNode) {
  // Per worker: two backward passes, the first under NoSync or not.
  for (const bool quiet : {true, false}) {
    const Ends ends = results_of(4, [&](int i, World& world) {
      const auto x = several_blocks();
      Options options = kHierarchy;
      options.clip = 5;
      Optimizer optimizer(x, SGD{.lr = 0.1}, options, world);
      for (int t = 1; t <= 6; ++t) {
        optimizer.zero_grad();
        const auto pass = [&] {
          Tensor loss = 0.25 * (x[0] - centre(i, t)).pow(2).sum();  // half of gradient()
          for (std::size_t p = 1; p < x.size(); ++p) loss = loss + 0.25 * (x[p] - centre(i, t)).pow(2).sum();
          loss.backward();
        };
        if (quiet) {
          const NoSync own(optimizer);
          pass();
        } else {
          pass();
        }
        pass();
        optimizer.step();
      }
      return flat(x);
    });
    Options plain;
    plain.clip = 5;
    const Ends expected = nodes(4, SGD{.lr = 0.1}, 6, plain);
    for (int i = 0; i < 4; ++i) {
      for (std::size_t k = 0; k < ends.at(i).size(); k += 997)
        ASSERT_NEAR(ends.at(i)[k], expected.at(i / kNode)[k], 1e-5) << quiet;
      EXPECT_EQ(ends.at(i), ends.at(i / kNode * kNode));
    }
  }
}

TEST(Hierarchical, ANodeSendsItsParametersOnceHoweverManyWorkersItHas) {
  std::array<double, 4> sent{};
  double parameter_bytes = 0;
  flock(4, [&](int i, World& world) {
    const auto x = several_blocks();
    Optimizer optimizer(x, SGD{.lr = 0.1}, kHierarchy, world);
    for (const Tensor& p : x) p.mutable_grad() = gradient(p, i, 1);
    const auto before = optimizer.statistics();
    for (int t = 0; t < 20; ++t) optimizer.step();
    const auto after = optimizer.statistics();
    optimizer.consensus_distance();  // no worker leaves before
    sent[static_cast<std::size_t>(i)] = static_cast<double>(after.payload_sent - before.payload_sent) / 20;
    parameter_bytes = 4.0 * static_cast<double>(optimizer.parameter_count());
    EXPECT_EQ(after.aborted, 0U);
  });
  for (const int node : {0, 2}) {
    EXPECT_NEAR((sent[node] + sent[node + 1]) / parameter_bytes, 1,
                0.06);  // the last round may still be in flight
    EXPECT_GT(std::min(sent[node], sent[node + 1]), 0.2 * parameter_bytes);  // both own a share
  }
}

TEST(Hierarchical, ConsensusAndGroupsAddedLater) {
  const auto distances = results_of(4, [&](int i, World& world) {
    const Tensor first = parameter({70'000}), second = parameter({300}, 2);
    Optimizer optimizer({first}, AdamW{.lr = 0.05}, kHierarchy, world);
    for (int t = 1; t <= 10; ++t) {
      if (t == 5) optimizer.add_param_group(torch::optim::OptimizerParamGroup(std::vector<Tensor>{second}));
      first.mutable_grad() = gradient(first, i, t);
      second.mutable_grad() = gradient(second, i, t);
      optimizer.step();
    }
    for (int t = 0; t < 10; ++t) {
      optimizer.zero_grad();
      optimizer.step();  // mixing only
    }
    EXPECT_EQ(second.detach().eq(2.0).any().item<bool>(), false);
    const Consensus average(optimizer);
    EXPECT_EQ(average.workers(), 4);
    return average.distance();
  });
  EXPECT_THAT(distances, testing::Each(testing::Lt(1e-6)));
}

TEST(Hierarchical, ALostWorkerEndsItsNodeAndNoOther) {
  std::array<std::string, 4> errors;
  flock(4, [&](int i, World& world) {
    const Tensor x = parameter({300'000});
    Optimizer optimizer({x}, SGD{.lr = 0.1}, kHierarchy, world);
    errors[static_cast<std::size_t>(i)] = refusal([&] {
      for (int t = 1; t <= 30; ++t) {
        if (i == 3 && t == 5) return;
        x.mutable_grad() = gradient(x, i, t);
        optimizer.step();
      }
    });
  });
  EXPECT_THAT(errors[2], HasSubstr("failed on rank 2: worker 3 is gone"));
  EXPECT_EQ(errors[0] + errors[1], "acceptedaccepted");
}

// The gradients that backward() left in .grad are already in flight.
TEST(Hierarchical, GradientsThatAreChangedAfterBackwardAreRefused) {
  flock(4, [&](int i, World& world) {
    const Tensor x = parameter({300'000});
    Optimizer optimizer({x}, SGD{.lr = 0.1}, kHierarchy, world);
    for (int t = 0; t < 2; ++t) {
      (x * (i + t)).sum().backward();
      if (t == 1) x.mutable_grad().mul_(0.5);
      const std::string said = refusal<UsageError>([&] { optimizer.step(); });
      EXPECT_THAT(said, HasSubstr(t == 0 ? "accepted" : ".grad was changed between backward() and step()"));
    }
  });
}

}  // namespace
}  // namespace starling
