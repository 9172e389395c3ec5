// Stochastic gradient push in the optimizer, beside the paper's x and w in plain loops in double.
#include "starling/topology/schedules.h"
#include "tests/optim/every_scheme.h"
#include "tests/optim/lopsided.h"
#include "tests/optim/plain.h"

namespace starling {
namespace {

using namespace std::chrono_literals;
using at::Tensor;

constexpr std::array<std::int64_t, 2> kSizes{301, 70'001};  // of two parameters, in several blocks

struct Plains {
  std::vector<double> z, w;  // by worker, in the end
};

// z of every worker, whose values are all equal: x and w are pushed, and z = x / w.
Plains plain_push_sum(const Schedule& schedule, int steps, const AccumAdamW* adam, double lr, int staleness) {
  const auto n = static_cast<std::size_t>(schedule.workers());
  std::vector<double> x(n, 0.5), w(n, 1);
  std::vector<double> moved_x(n), moved_w(n);  // by the pushes in flight
  std::vector<Plain> state(n);
  for (int t = 0; t < steps; ++t) {
    std::vector<double> step(n);
    for (std::size_t i = 0; i < n; ++i) {
      const double g = x[i] / w[i] - centre(static_cast<int>(i), t);
      step[i] = lr * (adam != nullptr ? state[i].direction(g, *adam) : g);
    }
    const double keep = adam != nullptr ? 1 - lr * adam->weight_decay : 1;
    const auto adapt = [&](std::vector<double>& value) {
      for (std::size_t i = 0; i < n; ++i) value[i] = keep * value[i] - step[i];
    };
    const auto push = [&](const Graph& graph) {
      moved_x.assign(n, 0), moved_w.assign(n, 0);
      for (std::size_t i = 0; i < n; ++i) {
        for (const Neighbour& j : graph.neighbours[i]) {
          const auto from = static_cast<std::size_t>(j.rank);
          moved_x[i] += j.weight * x[from], moved_w[i] += j.weight * w[from];
          moved_x[from] -= j.weight * x[from], moved_w[from] -= j.weight * w[from];
        }
      }
    };
    const auto absorb = [&] {
      for (std::size_t i = 0; i < n; ++i) x[i] += moved_x[i], w[i] += moved_w[i];
    };
    if (staleness == 0) {
      adapt(x), push(schedule.at(t)), absorb();
    } else {
      if (t % staleness == 0) push(schedule.at(t / staleness));
      if (t % staleness == staleness - 1) absorb();
      adapt(x);
    }
  }
  Plains all{.z = x, .w = w};
  for (std::size_t i = 0; i < n; ++i) all.z[i] /= w[i];
  return all;
}

TEST(PushSumScheme, IsThePapersXAndWOnAGraphThatIsNotDoublyStochastic) {
  const Lopsided file;
  constexpr int kSteps = 13;
  for (const int staleness : {0, 1, 3}) {
    for (const bool adam : {false, true}) {
      SCOPED_TRACE(std::to_string(staleness) + (adam ? " adam" : " sgd"));
      const AccumAdamW rule{.lr = 0.1, .eps = 0.5, .weight_decay = 0.2, .window = 3};
      const Plains should = plain_push_sum(make_shares(file.path(), Lopsided::n), kSteps,
                                           adam ? &rule : nullptr, 0.1, staleness);
      flock(Lopsided::n, [&](int i, World& world) {
        const Tensor p = parameter({kSizes[0]}, 0.5), q = parameter({kSizes[1]}, 0.5);
        Optimizer optimizer({p, q}, adam ? Rule(rule) : Rule(SGD{.lr = 0.1}),
                            {.topology = file.path(), .scheme = {"push-sum", {{"staleness", staleness}}}},
                            world);
        train({p, q}, optimizer, i, 0, kSteps);
        const auto at = static_cast<std::size_t>(i);
        EXPECT_TRUE(is_all(at::cat({p.detach(), q.detach()}), should.z[at])) << p[0] << " " << should.z[at];
        for (const Tensor& parameter : {p, q})
          EXPECT_TRUE(at::allclose(optimizer.weights(parameter),
                                   at::full_like(optimizer.weights(parameter), should.w[at]), 1e-6, 0))
              << should.w[at];
        expect_undisturbed(optimizer);
      });
    }
  }
}

TEST(PushSumScheme, RefusesAStrangeWeightOrCountOfStepsSinceTheLastPush) {
  Optimizer optimizer({parameter({2})}, SGD{},
                      {.topology = "ring", .scheme = {"push-sum", {{"staleness", 3}}}}, World::alone());
  OptimizerState light = copy_of(optimizer.state());
  light.tensors.at("weights")[0] = -1.0;
  EXPECT_THAT(refusal([&] { optimizer.set_state(light); }),
              testing::HasSubstr("tensor \"weights\": -1 is not from 1e-06 to 1000000"));
  const OptimizerState state = copy_of(optimizer.state());
  for (const double number : {-1.0, 0.5, 3.0, std::nan("")}) {
    state.tensors.at("since_push").fill_(number);
    EXPECT_THAT(refusal<UsageError>([&] { optimizer.set_state(state); }),
                testing::HasSubstr("\"since_push\": wants a whole number from 0 to 2"));
  }
}

// Without gradients all workers reach the exact mean of their start, though their weights differ.
// With every wire, their weighted mean stays.
TEST(PushSumScheme, ReachesTheExactMeanWithEveryWire) {
  const Lopsided file;
  struct Case {
    Wire wire;
    double distance;  // in the end
  };
  for (const int staleness : {0, 1, 2}) {
    for (const Case& the : {Case{Wire::fp32, 1e-6}, {Wire::fp16, 4e-3}, {Wire::bf16, 3e-2}}) {
      SCOPED_TRACE(std::string(name_of(the.wire)) + " " + std::to_string(staleness));
      flock(Lopsided::n, [&](int i, World& world) {
        const Tensor p = parameter({999});
        Optimizer optimizer(
            std::vector<Tensor>{p}, SGD{.lr = 1},
            {.topology = file.path(), .scheme = {"push-sum", {{"staleness", staleness}}}, .wire = the.wire},
            world);
        const auto line = [](double k) { return at::linspace(-1, 1, 999) * k; };
        p.detach().copy_(line(i * i));
        optimizer.restart(0);
        for (int t = 0; t < 60 * std::max(1, staleness); ++t) {
          optimizer.step();
          if (t % 7 != 3) continue;
          const Consensus average(optimizer);
          EXPECT_TRUE(at::allclose(p.detach(), line(Lopsided::squares / Lopsided::n), 1e-5, 1e-5))
              << "step " << t;
        }
        EXPECT_LT(optimizer.consensus_distance(), the.distance);
        double w = optimizer.weights(p)[0].item<double>(), off = std::abs(w - 1);
        auto sum = static_cast<float>(w);
        optimizer.average({&sum, 1});
        EXPECT_NEAR(sum, 1, 1e-6);
        std::int64_t far = off > 0.2 ? 1 : 0;
        optimizer.maximum({&far, 1});
        EXPECT_EQ(far, 1);
      });
    }
  }
}

TEST(PushSumScheme, OnABalancedScheduleTheWeightsStayOne) {
  for (const char* topology :
       {"ring", "one-peer-exponential-directed", "n-peer-exponential-2", "static-exponential"}) {
    flock(5, [&](int i, World& world) {
      const Tensor p = parameter({100});
      Optimizer optimizer({p}, SGD{.lr = 0.1}, {.topology = topology, .scheme = "push-sum"}, world);
      for (int t = 0; t < 20; ++t) {
        p.mutable_grad() = at::full({100}, static_cast<double>(i));
        optimizer.step();
      }
      EXPECT_TRUE(at::allclose(optimizer.weights(p), at::ones({100}, at::kDouble), 1e-6, 0)) << topology;
      const Consensus average(optimizer);
      EXPECT_TRUE(is_all(p, -4)) << topology << p[0];
    });
  }
}

// The sums over all workers of w and of w z.
struct Mass {
  explicit Mass(int n) : w(static_cast<std::size_t>(n)), x(w) {}
  void take(int rank, const Optimizer& optimizer, const Tensor& z) {
    const Tensor weights = optimizer.weights(z);
    w[static_cast<std::size_t>(rank)] = weights.mean().item<double>();
    x[static_cast<std::size_t>(rank)] = (weights * z.detach()).mean().item<double>();
  }
  double sum_w() const { return std::accumulate(w.begin(), w.end(), 0.0); }
  double sum_x() const { return std::accumulate(x.begin(), x.end(), 0.0); }
  std::vector<double> w, x;  // by worker, means over its values
};

// A worker sleeps in the middle of a run with gradients, and the others go on without it for some
// rounds. On such edges, this loss moves the mean of every other scheme.
TEST(PushSumScheme, AbortedPushesStayWithTheirSenders) {
  const Lopsided file;
  for (const int staleness : {0, 1, 2}) {
    Mass mass(Lopsided::n);
    std::uint64_t aborted = 0, moved = 0;  // one worker at a time adds to them
    const auto work = [&](int rank, World& world, VirtualTime& time) {
      const Tensor x = parameter({10});
      Optimizer optimizer(
          {x}, SGD{.lr = 1},
          {.topology = file.path(), .scheme = {"push-sum", {{"staleness", staleness}}}, .max_wait = 20ms},
          world);
      const auto go = [&](int steps, double gradient) {
        for (int t = 0; t < steps; ++t) {
          time.sleep(10ms);
          x.mutable_grad() = at::full({10}, gradient);
          optimizer.step();
        }
      };
      go(3, rank * rank);
      if (rank == 2) time.sleep(100ms);
      go(4, rank);
      x.mutable_grad() = Tensor();
      while (time.now().time_since_epoch() < 2s) {
        time.sleep(10ms);
        optimizer.step();
      }
      EXPECT_LT(optimizer.consensus_distance(), 1e-4);
      mass.take(rank, optimizer, x);
      EXPECT_NEAR(x[0].item<double>(), -(3 * Lopsided::squares + 4 * Lopsided::ranks) / Lopsided::n, 1e-4);
      aborted += optimizer.statistics().aborted;
      moved += optimizer.statistics().directed_aborted;
      nobody_leaves_yet(optimizer);
    };
    virtual_flock(Lopsided::n, work, 1e9);
    if (staleness == 0) {  // otherwise some are a round ahead, with pushes in flight
      EXPECT_NEAR(mass.sum_w(), Lopsided::n, 1e-12);
      EXPECT_NEAR(mass.sum_x(), -(3 * Lopsided::squares + 4 * Lopsided::ranks), 1e-4);
    }
    EXPECT_GT(aborted, 0U);
    EXPECT_EQ(moved, 0U);
  }
}

// Connections break before or after the votes, at random. After they are mended, exactly one end
// has a push that was in doubt.
TEST(PushSumScheme, BrokenConnectionsLoseNothing) {
  const Lopsided file;
  for (const int staleness : {0, 1}) {
    LocalHub hub(Lopsided::n);
    Mass mass(Lopsided::n);
    std::atomic<int> training = Lopsided::n;
    std::atomic<std::uint64_t> aborted = 0;
    std::thread breaker([&] {
      const std::array<std::pair<int, int>, 4> edges{{{0, 1}, {0, 3}, {1, 3}, {0, 2}}};
      for (std::size_t k = 0; training == Lopsided::n; ++k) {
        const auto [a, b] = edges[k % edges.size()];
        hub.sever(a, b);
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        hub.mend(a, b);
        std::this_thread::sleep_for(std::chrono::microseconds(300));
      }
    });
    flock(Lopsided::n, [&](int rank, World& world) {
      world.make_transport = [&hub, start = world.make_transport](const World& the,
                                                                  const std::string& channel) {
        return channel.starts_with("optimizer") ? hub.endpoint(the.rank) : start(the, channel);
      };
      const Tensor x = parameter({20'000});
      Optimizer optimizer({x}, SGD{.lr = 1},
                          {.topology = file.path(), .scheme = {"push-sum", {{"staleness", staleness}}}},
                          world);
      x.mutable_grad() = at::full({20'000}, static_cast<double>(rank * rank));
      optimizer.step();
      x.mutable_grad() = Tensor();
      for (int t = 0; t < 150; ++t) optimizer.step();
      --training;
      for (int t = 0; t < 200; ++t) optimizer.step();  // decides the pushes that were in doubt
      mass.take(rank, optimizer, x);
      EXPECT_TRUE(at::allclose(x.detach(), at::full({20'000}, -Lopsided::squares / Lopsided::n), 1e-4, 1e-4))
          << x[0];
      aborted += optimizer.statistics().aborted;
      nobody_leaves_yet(optimizer);
    });
    breaker.join();
    if (staleness == 0) {  // otherwise some are a round ahead, with pushes in flight
      EXPECT_NEAR(mass.sum_w(), Lopsided::n, 1e-12);
      EXPECT_NEAR(mass.sum_x(), -Lopsided::squares, 1e-4);
    }
    EXPECT_GT(aborted, 10U);
  }
}

// One worker of a directed ring has left, so nobody pushes to the next one any more. This
// neighbour must not push away all of its weight, because its steps are divided by the rest.
TEST(PushSumScheme, AWorkerThatReceivesNothingKeepsSomeWeight) {
  const TopologyFile circle(
      "workers = 3\n[[rounds]]\nweights = \"push-sum\"\nedges = [[0, 1], [1, 2], [2, 0]]\n");
  flock(3, [&](int rank, World& world) {
    const Tensor x = parameter({10});
    Optimizer optimizer({x}, SGD{.lr = 0.1}, {.topology = circle.path(), .scheme = "push-sum"}, world);
    for (int t = 0; t < (rank == 2 ? 5 : 60); ++t) {
      x.mutable_grad() = x.detach() - rank;
      optimizer.step();
    }
    if (rank == 2) return;
    EXPECT_GE(optimizer.weights(x)[0].item<double>(), 1.0 / 16);
    EXPECT_TRUE(at::allclose(x.detach(), at::full({10}, 0.5), 0, 0.6)) << x[0];
  });
}

}  // namespace
}  // namespace starling
