// The optimizer on a virtual cluster: every scheme repeats its bits and its times.
#include <random>

#include "tests/optim/every_scheme.h"

namespace starling {
namespace {

using namespace std::chrono_literals;
using at::Tensor;

constexpr int kMany = 4, kSteps = 40;
constexpr std::int64_t kSize = 250'000;  // 1 MB
constexpr double kRate = 1e8;            // so that a block takes 10 ms

struct Runs {
  std::vector<Tensor> x;        // by worker
  std::vector<double> seconds;  // by worker, after its last step
};

// Worker i descends towards 10 i. compute(): the time that a gradient takes.
Runs train(const Options& options, const std::function<Duration()>& compute) {
  Runs all{std::vector<Tensor>(kMany), std::vector<double>(kMany)};
  const auto work = [&](int rank, World& world, VirtualTime& time) {
    const Tensor x = parameter({kSize});
    Optimizer optimizer({x}, SGD{.lr = 0.1}, options, world);
    for (int t = 0; t < kSteps; ++t) {
      time.sleep(compute());
      x.mutable_grad() = x.detach() - 10 * rank;
      optimizer.step();
    }
    all.seconds[static_cast<std::size_t>(rank)] = seconds(time.now().time_since_epoch());
    const Consensus average(optimizer);
    EXPECT_EQ(average.workers(), kMany);
    // A worker of small weight moves far, and pushes need longer to even that out. Steps by second
    // moments, as Adam's, are too short for all the way.
    const SchemeInfo& info = scheme_info(options.scheme.name);
    const bool short_steps = std::ranges::count(info.options, "beta2", &SchemeOption::name) > 0;
    const double off = short_steps ? 14.5 : info.name == "async-push-sum" ? 3 : 2;
    EXPECT_NEAR(x.mean().item<double>(), 15, off) << info.name;
    all.x[static_cast<std::size_t>(rank)] = x.detach().clone();
  };
  virtual_flock(kMany, work, kRate);
  return all;
}

TEST(VirtualCluster, EverySchemeGivesTheSameBitsAndTimes) {
  std::vector<Options> all{
      {.topology = "base-2"},
      {.topology = "base-2", .wire = Wire::int8},
      {.topology = "complete", .scheme = "atc"},
      {.topology = "ring", .scheme = "choco", .one_in = 4},
      {.topology = "n-peer-exponential-2", .scheme = {"push-sum", {{"staleness", 1}}}},
      {.topology = "ring", .scheme = "a2cid2", .wire = Wire::int8},
      {.topology = "ring", .scheme = {"swarm", {{"local_steps", 3}}}, .wire = Wire::int4},
      {.topology = "complete", .hierarchy = "node", .workers_per_node = 2}};
  for (const SchemeInfo* const info : schemes()) all.push_back(options_of(*info));
  for (const Options& options : all) {
    const auto once = [&] {
      std::mt19937_64 random(9);
      return train(options, [&] {
        return std::chrono::duration_cast<Duration>(20ms * std::lognormal_distribution<>(0, 0.5)(random));
      });
    };
    const Runs first = once(), second = once();
    EXPECT_EQ(first.seconds, second.seconds) << options.scheme.name;
    for (std::size_t i = 0; i < kMany; ++i) EXPECT_TRUE(first.x[i].equal(second.x[i])) << options.scheme.name;
  }
}

TEST(VirtualCluster, SwarmWithOneLocalStepIsAdPsgd) {
  const auto compute = [] { return Duration(20ms); };
  const Runs one = train({.topology = "ring", .scheme = "swarm"}, compute);
  const Runs other = train({.topology = "ring", .scheme = "ad-psgd"}, compute);
  for (std::size_t i = 0; i < kMany; ++i) EXPECT_TRUE(one.x[i].equal(other.x[i]));
}

// The masters of parameters in bf16 are averaged, even with wires of a byte or less. Their sum is
// that of the gradients.
TEST(VirtualCluster, TheSumOfMastersIsKept) {
  constexpr int kGradients = 42, kValues = 1000;
  constexpr double lr = 0.01;
  for (const Options& options :
       {Options{.topology = "ring", .scheme = "a2cid2", .wire = Wire::int8},
        Options{.topology = "ring", .scheme = {"swarm", {{"local_steps", 3}}}, .wire = Wire::int4},
        Options{.topology = "n-peer-exponential-1", .scheme = "async-push-sum"}}) {
    double sum = 0, expected = 0;  // one worker at a time adds to them
    const auto work = [&](int rank, World& world, VirtualTime& time) {
      const Tensor x = at::full({kValues}, 1, at::kBFloat16).set_requires_grad(true);
      Optimizer optimizer({x}, SGD{.lr = lr}, options, world);
      for (int t = 0; t < kGradients; ++t) {
        time.sleep(20ms * (rank + 1));
        x.mutable_grad() = at::full_like(x.detach(), rank + 1);
        optimizer.step();
      }
      const OptimizerState state = optimizer.state();
      Tensor kept = state.tensors.at("master.0.0");
      EXPECT_TRUE(kept.to(at::kBFloat16).equal(x.detach()));
      const auto tilde = state.tensors.find("x_tilde.0.0");
      EXPECT_EQ(tilde != state.tensors.end(), options.scheme.name == "a2cid2");
      if (tilde != state.tensors.end()) kept = (kept + tilde->second) / 2;
      kept = kept * optimizer.weights(x);
      sum += kept.to(at::kDouble).mean().item<double>();
      expected += 1 - lr * kGradients * (rank + 1);
      EXPECT_GT(optimizer.statistics().rounds, 5U);
      time.sleep(10s);  // others still average
    };
    virtual_flock(kMany, work, kRate);
    EXPECT_NEAR(sum, expected, 1e-5) << options.scheme.name;
  }
}

// Two workers of different speed. Worker i descends towards 10 i + 1. The averagings are recorded
// at each tick.
struct Pair {
  Pair(const Options& options, double lr, const int (&takes)[2], int ticks, Duration tick)
      : averaged(static_cast<std::size_t>(ticks) + 1) {
    virtual_flock(2, [&](int rank, World& world, VirtualTime& time) {
      const Tensor x = parameter({kValues});
      Optimizer optimizer({x}, SGD{.lr = lr}, options, world);
      for (int t = 1; t <= ticks; ++t) {
        time.sleep(tick);
        const Statistics now = optimizer.statistics();
        ASSERT_EQ(now.edges.size(), 1U);
        if (rank == 0) averaged[static_cast<std::size_t>(t)] = now.edges[0].averaged;
        if (t % takes[rank] != 0) continue;
        x.mutable_grad() = x.detach() - 10 * rank - 1;
        optimizer.step();
      }
      ends[static_cast<std::size_t>(rank)] = x.detach().clone();
      time.sleep(1s);
    });
  }
  static constexpr int kValues = 3;
  std::vector<std::uint64_t> averaged;  // so far, at the tick
  std::vector<Tensor> ends{2};
};

// Repeats the recorded averagings in plain loops.
TEST(VirtualCluster, PairGossipIsItsEquation) {
  constexpr int kTicks = 2000;
  constexpr double lr = 0.05;
  constexpr int takes[] = {10, 13};  // ticks
  for (const Options& options : {Options{.topology = "ring", .scheme = "ad-psgd"},
                                 Options{.topology = "ring", .scheme = "ad-psgd-bipartite"},
                                 Options{.topology = "ring", .scheme = {"swarm", {{"local_steps", 3}}}}}) {
    const int local_steps = options.scheme.name == "swarm" ? 3 : 1;
    const Pair pair(options, lr, takes, kTicks, 1ms);
    const auto& averaged = pair.averaged;
    const auto& ends = pair.ends;
    double x[2] = {}, p[2] = {}, taken[2] = {};
    int made[2] = {};
    for (int tick = 1; tick <= kTicks; ++tick) {
      const auto t = static_cast<std::size_t>(tick);
      if (averaged[t] > averaged[t - 1]) x[0] = x[1] = (x[0] + x[1]) / 2;
      for (const int i : {0, 1}) {
        if (tick % takes[i] != 0) continue;
        p[i] -= lr * (p[i] - 10 * i - 1);
        if (++made[i] % local_steps != 0) continue;
        x[i] += p[i] - taken[i];
        p[i] = taken[i] = x[i];
      }
    }
    EXPECT_GT(averaged.back(), 30U) << options.scheme.name;
    for (const int i : {0, 1})
      EXPECT_TRUE(
          at::allclose(ends[static_cast<std::size_t>(i)], at::full({Pair::kValues}, p[i]), 1e-5, 1e-5))
          << options.scheme.name << " " << ends[static_cast<std::size_t>(i)][0].item<double>() << " " << p[i];
  }
}

// The same with momentum, which acts at every instant. The ticks are so short that the moment of an
// averaging within a tick hardly matters.
TEST(VirtualCluster, A2cid2IsItsEquation) {
  constexpr int kTicks = 50'000;
  constexpr double lr = 0.3, eta = 0.8, alpha_tilde = 0.7;
  constexpr int takes[] = {250, 325};  // ticks
  const Options options{.topology = "ring",
                        .scheme = {"a2cid2", {{"eta", eta}, {"alpha_tilde", alpha_tilde}}}};
  const Pair pair(options, lr, takes, kTicks, 40us);
  const auto& averaged = pair.averaged;
  const auto& ends = pair.ends;
  const auto end_with = [&](double eta) {
    std::array<double, 2> x{}, x_tilde{}, p{}, taken{}, mixed{};
    double credit[] = {Gossip::kMostCredit, Gossip::kMostCredit};  // gradients; rate 1: one an averaging
    int made[2] = {};
    const auto momentum_to = [&](std::size_t i, double now) {
      // The time of a gradient is not known before the second.
      const double tau = made[i] < 2 ? 0 : std::min((now - mixed[i]) / takes[i], credit[i]);
      credit[i] -= tau;
      const double share = (1 - std::exp(-2 * eta * tau)) / 2, towards = share * (x_tilde[i] - x[i]);
      x[i] += towards, x_tilde[i] -= towards, mixed[i] = now;
    };
    for (int tick = 1; tick <= kTicks; ++tick) {
      const auto t = static_cast<std::size_t>(tick);
      for (std::uint64_t k = averaged[t - 1]; k < averaged[t]; ++k) {
        for (const std::size_t i : {0, 1}) momentum_to(i, tick - 0.5);
        const double difference = x[1] - x[0];
        x[0] += difference / 2, x_tilde[0] += alpha_tilde * difference;
        x[1] -= difference / 2, x_tilde[1] -= alpha_tilde * difference;
        for (double& one : credit) one = std::min(one + 1, Gossip::kMostCredit);
      }
      for (const std::size_t i : {0, 1}) {
        if (tick % takes[i] != 0) continue;
        p[i] -= lr * (p[i] - 10 * static_cast<double>(i) - 1);
        momentum_to(i, tick);
        ++made[i];
        x[i] += p[i] - taken[i], x_tilde[i] += p[i] - taken[i];
        p[i] = taken[i] = x[i];
      }
    }
    return p;
  };
  EXPECT_GT(averaged.back(), 30U);
  const auto with = end_with(eta), without = end_with(0);
  for (const std::size_t i : {0, 1}) {
    const double end = ends[i][0].item<double>();
    EXPECT_NEAR(end, with[i], 5e-4);
    EXPECT_GT(std::abs(end - without[i]), 2e-3);
  }
}

// A circle of workers of different speed. Each one pushes to the next. The pushes are recorded, and
// repeated in plain loops.
struct Circle {
  static constexpr int n = 3, kTicks = 20'000, kValues = 3;
  static constexpr double lr = 0.05;
  static constexpr int takes[] = {100, 130, 170};  // ticks
  static double gradient(int i, double x) { return x - 10 * i - 1; }

  explicit Circle(const std::string& scheme) {
    const TopologyFile circle(
        "workers = 3\n[[rounds]]\nweights = \"push-sum\"\nedges = [[1, 0], [2, 1], [0, 2]]\n");
    virtual_flock(n, [&](int rank, World& world, VirtualTime& time) {
      const auto me = static_cast<std::size_t>(rank);
      const Tensor x = parameter({kValues});
      Optimizer optimizer({x}, SGD{.lr = lr}, {.topology = circle.path(), .scheme = scheme}, world);
      for (int tick = 1; tick <= kTicks; ++tick) {
        time.sleep(100us);
        const Statistics now = optimizer.statistics();
        const auto next = std::ranges::find(now.edges, (rank + 1) % n, &Statistics::Edge::rank);
        pushed[me][static_cast<std::size_t>(tick)] = next->averaged;
        if (tick % takes[rank] != 0) continue;
        x.mutable_grad() = x.detach() - 10 * rank - 1;
        optimizer.step();
      }
      ends[me] = x.detach().clone();
      weights[me] = optimizer.weights(x);
      time.sleep(1s);
    });
  }
  // Calls push(i, j) and gradient(i) as they were.
  template <class Push, class Gradient>
  void again(const Push& push, const Gradient& made) const {
    std::uint64_t pushes = 0;
    for (std::size_t t = 1; t <= kTicks; ++t) {
      for (int i = 0; i < n; ++i) {
        const auto& mine = pushed[static_cast<std::size_t>(i)];
        for (std::uint64_t k = mine[t - 1]; k < mine[t]; ++k, ++pushes) push(i, (i + 1) % n);
      }
      for (int i = 0; i < n; ++i) {
        if (static_cast<int>(t) % takes[i] == 0) made(i);
      }
    }
    EXPECT_GT(pushes, 100U);
  }
  void expect_ended_at(const double (&p)[n]) const {
    for (int i = 0; i < n; ++i) {
      const Tensor& end = ends[static_cast<std::size_t>(i)];
      EXPECT_TRUE(at::allclose(end, at::full({kValues}, p[i]), 1e-5, 1e-5))
          << end[0].item<double>() << " " << p[i];
    }
  }

  // The pushes of each worker up to each tick.
  std::vector<std::vector<std::uint64_t>> pushed{n, std::vector<std::uint64_t>(kTicks + 1)};
  std::vector<Tensor> ends{n}, weights{n};
};

TEST(VirtualCluster, AsynchronousPushSumIsItsEquation) {
  constexpr int n = Circle::n;
  const Circle circle("async-push-sum");
  double x[n] = {}, p[n] = {}, taken[n] = {}, w[n] = {1, 1, 1}, known[n] = {1, 1, 1};
  circle.again(
      [&](int i, int j) {
        const double m = w[i] < 1.0 / 8 ? 0 : w[i] / 2;
        w[i] -= m, w[j] += m;
        x[j] += m / w[j] * (x[i] - x[j]);
      },
      [&](int i) {
        p[i] -= Circle::lr * Circle::gradient(i, p[i]);
        x[i] += (p[i] - taken[i]) / w[i];
        p[i] = taken[i] = x[i];
        known[i] = w[i];
      });
  circle.expect_ended_at(p);
  for (int i = 0; i < n; ++i) {
    EXPECT_TRUE(at::allclose(circle.weights[static_cast<std::size_t>(i)],
                             at::full({Circle::kValues}, known[i], at::kDouble), 1e-9, 0));
  }
}

// It reaches the optimum of all, however often each worker makes a gradient.
TEST(VirtualCluster, AsynchronousPushPullIsItsEquation) {
  constexpr int n = Circle::n;
  const Circle circle("async-push-pull");
  double x[n] = {}, y[n] = {}, g[n] = {}, p[n] = {}, taken[n] = {};
  circle.again(
      [&](int i, int j) {
        x[j] += (x[i] - x[j]) / 2;
        y[j] += y[i] / 2;
        y[i] /= 2;
      },
      [&](int i) {
        const double now = Circle::gradient(i, p[i]);
        y[i] += now - g[i];
        g[i] = now;
        p[i] -= Circle::lr * y[i];
        x[i] += p[i] - taken[i];
        p[i] = taken[i] = x[i];
      });
  circle.expect_ended_at(p);
  for (const double end : p)
    EXPECT_NEAR(end, 11, 0.05);  // by push-sum the fast ones would be nearer to theirs
}

// T = max(F + B, C) with combine-then-adapt. T = F + B + C with adapt-then-combine, and with an
// all-reduce that overlaps nothing. T = F + B with gossip on any link. Neighbours change, and a
// card may wait for another one: up to a tenth more.
TEST(VirtualCluster, AStepTakesWhatTheClosedFormsSay) {
  const double link = 4.0 * kSize / kRate;  // of one neighbour's block
  const auto step = [&](const Options& options, Duration compute) {
    return train(options, [&] { return compute; }).seconds[0] / kSteps;
  };
  for (const Duration compute : {Duration(5ms), Duration(40ms)}) {
    const double own = seconds(compute);
    const double longer = std::max(own, link);
    EXPECT_NEAR(step({.topology = "one-peer-exponential"}, compute), longer, 0.1 * longer);
    EXPECT_NEAR(step({.topology = "one-peer-exponential", .scheme = "atc"}, compute), own + link,
                0.1 * (own + link));
    EXPECT_NEAR(step({.scheme = "all-reduce"}, compute), own + link, 0.05 * (own + link));
    EXPECT_NEAR(step({.topology = "ring", .scheme = "a2cid2"}, compute), own, 1e-9);
  }
}

}  // namespace
}  // namespace starling
