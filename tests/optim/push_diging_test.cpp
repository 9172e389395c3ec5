// Push-DIGing in the optimizer, beside the paper's u, v and y in double.
#include <ATen/CPUGeneratorImpl.h>

#include "starling/topology/schedules.h"
#include "tests/optim/every_scheme.h"

namespace starling {
namespace {

using namespace std::chrono_literals;
using at::Tensor;

constexpr int kPushers = 5;  // workers

// Two rounds of directed edges: columns sum to 1, rows do not.
struct Uneven : TopologyFile {
  Uneven()
      : TopologyFile(
            "workers = 5\n"
            "[[rounds]]\nweights = \"push-sum\"\nedges = [[0, 1], [0, 2], [3, 0], [1, 3], [4, 0]]\n"
            "[[rounds]]\nweights = \"push-sum\"\nedges = [[2, 0], [1, 0], [0, 3], [3, 4]]\n") {}
};

// C of one round: C_ij is the share of itself that j pushes to i.
Tensor shares(const Graph& graph) {
  const int n = graph.workers();
  Tensor c = at::zeros({n, n}, at::kDouble);
  for (int i = 0; i < n; ++i) {
    for (const Neighbour& j : graph.neighbours[static_cast<std::size_t>(i)]) c[i][j.rank] = j.weight;
  }
  return c + (1 - c.sum(0)).diag();
}

// Worker i's loss is 1/2 x'A_i x - b_i'x. A_i and b_i are random and differ much.
struct Quadratics {
  static constexpr std::int64_t kValues = 6;
  Quadratics() {
    auto random = at::make_generator<at::CPUGeneratorImpl>(34);
    const Tensor m = at::randn({kPushers, kValues, kValues}, random, at::kDouble);
    a = 0.2 * m.matmul(m.transpose(1, 2)) / kValues + 0.4 * at::eye(kValues, at::kDouble);
    b = 2 * at::randn({kPushers, kValues}, random, at::kDouble);
  }
  // Rows of x and of the result: workers.
  Tensor gradients(const Tensor& x) const { return a.matmul(x.unsqueeze(2)).squeeze(2) - b; }
  Tensor gradient(int i, const Tensor& x) const {
    return (a[i].matmul(x.to(at::kDouble)) - b[i]).to(at::kFloat);
  }
  Tensor optimum() const { return a.sum(0).inverse().matmul(b.sum(0)); }
  Tensor a, b;
};

struct ParametersAndWeights {
  Tensor x, v;  // rows: workers
};

// The paper's Algorithm 2, from x = 0.
ParametersAndWeights plain_push_diging(const Quadratics& losses, const Schedule& schedule, int steps,
                                       double alpha) {
  Tensor u = at::zeros({kPushers, Quadratics::kValues}, at::kDouble),
         v = at::ones({kPushers, 1}, at::kDouble);
  Tensor x = u, g = losses.gradients(x), y = g;
  for (int t = 0; t < steps; ++t) {
    const Tensor c = shares(schedule.at(t));
    u = c.mm(u - alpha * y);
    v = c.mm(v);
    x = u / v;
    const Tensor fresh = losses.gradients(x);
    y = c.mm(y) + fresh - g;
    g = fresh;
  }
  return {x, v};
}

// The workers' parameters after these steps, as rows in double. `weights`: their v.
ParametersAndWeights after_steps(const Quadratics& losses, const Options& options, int steps, double lr) {
  const auto ends = results_of(kPushers, [&](int i, World& world) {
    const Tensor x = parameter({Quadratics::kValues});
    Optimizer optimizer({x}, SGD{.lr = lr}, options, world);
    for (int t = 0; t < steps; ++t) {
      x.mutable_grad() = losses.gradient(i, x.detach());
      optimizer.step();
    }
    expect_undisturbed(optimizer);
    return std::pair(x.detach().to(at::kDouble), optimizer.weights(x).slice(0, 0, 1).clone());
  });
  std::vector<Tensor> x, v;
  for (const auto& [values, weight] : ends) x.push_back(values), v.push_back(weight);
  return {at::stack(x), at::stack(v)};
}

double most_of(const Tensor& difference) { return difference.abs().max().item<double>(); }

TEST(PushDiging, IsThePapersUVAndYOnDirectedGraphs) {
  const Uneven uneven;
  const Quadratics losses;
  for (const std::string& topology :
       {std::string("one-peer-exponential-directed"), std::string("n-peer-exponential-2"), uneven.path()}) {
    SCOPED_TRACE(topology);
    const ParametersAndWeights should = plain_push_diging(losses, make_shares(topology, kPushers), 20, 0.1);
    const ParametersAndWeights all =
        after_steps(losses, {.topology = topology, .scheme = "push-diging"}, 20, 0.1);
    EXPECT_LT(most_of(all.x - should.x), 1e-5) << all.x << should.x;
    EXPECT_LT(most_of(all.v - should.v), 1e-6) << all.v << should.v;
    EXPECT_GT(most_of(should.x - should.x[0]), 1e-3) << "workers with skewed losses differ";
    EXPECT_EQ(most_of(should.v - 1) > 0.1, topology == uneven.path());
  }
}

// In double it comes as near as one likes. Parameters in fp32 come as near as their format lets
// them, whose loss is less than 1e-8 above the least. Push-sum stops beside the optimum.
TEST(PushDiging, ReachesTheCentralizedOptimumOnSkewedData) {
  constexpr int kSteps = 600;
  const Uneven uneven;
  const Quadratics losses;
  const Tensor optimum = losses.optimum();
  for (const std::string& topology : {std::string("one-peer-exponential-directed"), uneven.path()}) {
    SCOPED_TRACE(topology);
    const ParametersAndWeights should =
        plain_push_diging(losses, make_shares(topology, kPushers), kSteps, 0.1);
    EXPECT_LT(most_of(should.x - optimum), 1e-8);
    const auto end = [&](const char* scheme) {
      return after_steps(losses, {.topology = topology, .scheme = scheme}, kSteps, 0.1).x - optimum;
    };
    const Tensor off = end("push-diging");
    EXPECT_LT(most_of(off), 5e-5);
    EXPECT_LT(most_of(off.mm(losses.a.sum(0)).mul(off).sum(1) / 2), 1e-8);
    EXPECT_GT(most_of(end("push-sum")), 0.05);
  }
}

// Over doubly stochastic weights W, x is ATC's with y in place of the gradient: x(t+1) = W (x(t) -
// lr y(t)). Gradient-tracking is CTA's: W x(t) - lr y(t), with the same y. With gradients that do
// not depend on x, the first is W times the second.
TEST(PushDiging, OnASymmetricGraphItIsGradientTrackingWithTheMixingLast) {
  constexpr int kSteps = 12;
  const auto ends_of = [](const char* scheme) {
    return at::stack(results_of(kPushers, [scheme](int i, World& world) {
      const Tensor x = parameter({3});
      Optimizer optimizer({x}, SGD{.lr = 0.1}, {.topology = "ring", .scheme = scheme}, world);
      for (int t = 0; t < kSteps; ++t) {
        x.mutable_grad() = at::full({3}, centre(i, t));
        optimizer.step();
      }
      nobody_leaves_yet(optimizer);
      return x.detach().to(at::kDouble);
    }));
  };
  const Tensor w = shares(make_schedule("ring", kPushers).at(0));
  const Tensor tracking = ends_of("gradient-tracking");
  EXPECT_LT(most_of(ends_of("push-diging") - w.mm(tracking)), 1e-6);
  EXPECT_GT(most_of(tracking - w.mm(tracking)), 0.01);
}

// All workers have the same gradients, which do not change. So y / w is the gradient, however
// uneven the w are, and every worker makes the steps of the rule alone, weight decay too.
TEST(PushDiging, WorkersThatAgreeMakeTheStepsOfTheRuleAlone) {
  const Uneven uneven;
  const Options options{.topology = uneven.path(), .scheme = "push-diging"};
  constexpr std::int64_t kValues = 70'001;  // several blocks
  const auto make_steps = [](torch::optim::Optimizer& optimizer, const Tensor& x) {
    for (int t = 0; t < 15; ++t) {
      x.mutable_grad() = at::linspace(-1, 1, kValues);
      optimizer.step();
    }
  };
  const Tensor alone = parameter({kValues}, 0.5);
  const auto torchs = torch::optim::AdamWOptions(0.05).weight_decay(0.3);
  torch::optim::AdamW rule(std::vector<Tensor>{alone}, torchs);
  make_steps(rule, alone);
  for (const bool around : {false, true}) {
    flock(kPushers, [&](int, World& world) {
      const Tensor x = parameter({kValues}, 0.5);
      torch::optim::AdamW inner(std::vector<Tensor>{x}, torchs);
      const auto optimizer =
          around ? std::make_unique<Optimizer>(inner, options, world)
                 : std::make_unique<Optimizer>(std::vector<Tensor>{x}, AdamW{.lr = 0.05, .weight_decay = 0.3},
                                               options, world);
      make_steps(*optimizer, x);
      EXPECT_TRUE(at::allclose(x.detach(), alone.detach(), 1e-4, 1e-5)) << x[0] << alone[0];
      nobody_leaves_yet(*optimizer);
    });
  }
}

// The sums over all workers: of w, of w z and of y, and of the last gradients.
struct Sums {
  void take(const Optimizer& optimizer, const Tensor& x) {
    const OptimizerState state = optimizer.state();
    const Tensor weights = optimizer.weights(x);
    w += weights.mean().item<double>();
    wz += (weights * x.detach()).mean().item<double>();
    y += (weights * state.tensors.at("tracked.0.0")).mean().item<double>();
    g += state.tensors.at("own.0.0").to(at::kDouble).mean().item<double>();
  }
  double w = 0, wz = 0, y = 0, g = 0;
};

// Connections break before or after the votes, at random, while workers push without a step of the
// rule. After they are mended, all sums are as before.
TEST(PushDiging, BrokenConnectionsKeepTheSums) {
  const Uneven uneven;
  for (const Wire wire : {Wire::fp32, Wire::bf16}) {
    SCOPED_TRACE(name_of(wire));
    LocalHub hub(kPushers);
    Sums before, after;
    std::mutex mutex;  // guards the sums
    std::atomic<bool> breaks = false;
    std::atomic<int> training = kPushers;
    std::atomic<std::uint64_t> aborted = 0;
    std::thread breaker([&] {
      const std::array<std::pair<int, int>, 5> edges{{{0, 1}, {0, 3}, {1, 3}, {0, 2}, {0, 4}}};
      for (std::size_t k = 0; training == kPushers; ++k) {
        const auto [a, b] = edges[k % edges.size()];
        if (breaks) hub.sever(a, b);
        std::this_thread::sleep_for(200us);
        if (breaks) hub.mend(a, b);
        std::this_thread::sleep_for(300us);
      }
    });
    flock(kPushers, [&](int rank, World& world) {
      world.make_transport = [&hub, start = world.make_transport](const World& the,
                                                                  const std::string& channel) {
        return channel.starts_with("optimizer") ? hub.endpoint(the.rank) : start(the, channel);
      };
      const Tensor x = parameter({20'000});
      Optimizer optimizer({x}, SGD{.lr = 0.2},
                          {.topology = uneven.path(), .scheme = "push-diging", .wire = wire}, world);
      const auto go = [&](int steps) {
        for (int t = 0; t < steps; ++t) {
          x.mutable_grad() = at::full({20'000}, 1.0 + rank * rank);
          optimizer.step();
        }
      };
      const auto take = [&](Sums& sums) {
        nobody_leaves_yet(optimizer);
        {
          const std::lock_guard lock(mutex);
          sums.take(optimizer, x);
        }
        nobody_leaves_yet(optimizer);
      };
      go(3);
      take(before);
      breaks = true;
      optimizer.param_groups()[0].options().set_lr(0);
      go(150);
      --training;
      go(200);  // decides the pushes that were in doubt
      take(after);
      aborted += optimizer.statistics().aborted;
    });
    breaker.join();
    EXPECT_NEAR(before.w, 5, 1e-12);
    EXPECT_NEAR(after.w, 5, 1e-12);
    EXPECT_NEAR(before.y, 35, 1e-4);
    EXPECT_NEAR(after.y, 35, 1e-3);
    EXPECT_EQ(after.g, 35);
    EXPECT_LT(before.wz, -10);
    EXPECT_NEAR(after.wz, before.wz, 1e-3);
    EXPECT_GT(aborted, 10U);
  }
}

// One worker of a directed ring has left, so nobody pushes to the next one any more. Below the
// least weight this one keeps its y, as it keeps its x. Only its own gradients move y then.
TEST(PushDiging, AWorkerThatReceivesNothingKeepsWhatItTracks) {
  const TopologyFile circle(
      "workers = 3\n[[rounds]]\nweights = \"push-sum\"\nedges = [[0, 1], [1, 2], [2, 0]]\n");
  const auto ends = results_of(3, [&](int rank, World& world) {
    const Tensor x = parameter({10});
    Optimizer optimizer({x}, SGD{.lr = 0.05}, {.topology = circle.path(), .scheme = "push-diging"}, world);
    std::vector<Tensor> alone;  // y less the gradient in it, since this worker pushes nothing
    for (int t = 0; t < (rank == 2 ? 5 : 200); ++t) {
      x.mutable_grad() = x.detach() - rank;
      optimizer.step();
      const double w = optimizer.weights(x)[0].item<double>();
      EXPECT_GE(w, 1.0 / 16);
      if (w >= 1.0 / 8) continue;
      OptimizerState state = optimizer.state();
      alone.push_back(w * state.tensors.at("tracked.0.0") - state.tensors.at("own.0.0"));
    }
    EXPECT_EQ(alone.size() > 100, rank == 1);
    if (rank == 1) {
      EXPECT_LT(most_of(alone.back() - alone.front()), 1e-5);
    }
    return x.detach().clone();
  });
  for (const int rank : {0, 1}) EXPECT_LT(most_of(ends[static_cast<std::size_t>(rank)]), 4);
}

}  // namespace
}  // namespace starling
