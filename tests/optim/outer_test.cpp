// Local steps and the outer optimizer (outer.h), beside the papers' equations in double.

#include "starling/optim/options.h"
#include "starling/topology/schedules.h"
#include "tests/mixed.h"
#include "tests/optim/every_scheme.h"

namespace starling {
namespace {

using at::Tensor;
using Points = std::vector<double>;  // by worker

constexpr int kFive = 5, kOuterSteps = 24;
constexpr double kInnerLr = 0.1;

// The gradient of worker i at x: losses of different curvature.
double gradient(int i, int t, double x) { return (0.5 + 0.2 * i) * (x - centre(i, t)); }

// Each worker's value after each step.
std::vector<Points> values_of(const Options& options, int many = kFive) {
  std::vector<Points> after(kOuterSteps, Points(static_cast<std::size_t>(many)));
  flock(many, [&](int i, World& world) {
    const Tensor p = parameter({70'000}, 1);
    Optimizer optimizer({p}, SGD{.lr = kInnerLr}, options, world);
    for (int t = 0; t < kOuterSteps; ++t) {
      p.mutable_grad() = (0.5 + 0.2 * i) * (p.detach() - centre(i, t));
      optimizer.step();
      EXPECT_TRUE(is_all(p, p[0].item<double>()));
      after[static_cast<std::size_t>(t)][static_cast<std::size_t>(i)] = p[0].item<double>();
    }
    nobody_leaves_yet(optimizer);
  });
  return after;
}

void expect_near(const std::vector<Points>& run, const std::vector<Points>& expected) {
  ASSERT_EQ(run.size(), expected.size());
  for (std::size_t t = 0; t < run.size(); ++t) {
    for (std::size_t i = 0; i < run[t].size(); ++i)
      ASSERT_NEAR(run[t][i], expected[t][i], 1e-5) << "step " << t << ", worker " << i;
  }
}

Points adapted(Points x, int t) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] -= kInnerLr * gradient(static_cast<int>(i), t, x[i]);
  return x;
}

double mean_of(const Points& x) {
  return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}

TEST(Local, ScheduleStepsBetweenExchangesAreAlone) {
  constexpr int kEvery = 3;
  const Schedule schedule = make_schedule("base-2", kFive);
  for (const std::string scheme : {"cta", "atc"}) {
    std::vector<Points> expected;
    Points x(kFive, 1), sent = x;  // CTA mixes what was sent after the last exchange
    for (int t = 0; t < kOuterSteps; ++t) {
      const bool exchange = (t + 1) % kEvery == 0;
      const Graph& round = schedule.at(t / kEvery);
      const Points own = adapted(x, t);
      if (exchange && scheme == "atc") x = mixed(own, round);
      if (exchange && scheme == "cta") {
        const Points together = mixed(sent, round);
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = own[i] + together[i] - sent[i];
        sent = x;
      }
      if (!exchange) x = own;
      expected.push_back(x);
    }
    SCOPED_TRACE(scheme);
    expect_near(values_of({.topology = "base-2", .scheme = scheme, .every = kEvery}), expected);
  }
}

TEST(Local, WithMeansIsLocalSgd) {
  std::vector<Points> expected;
  Points x(kFive, 1);
  for (int t = 0; t < kOuterSteps; ++t) {
    x = adapted(x, t);
    if ((t + 1) % 4 == 0) x.assign(x.size(), mean_of(x));
    expected.push_back(x);
  }
  expect_near(values_of({.scheme = "local", .mean_every = 4}), expected);
}

// One worker's outer optimizer.
struct Momentum {
  double lr, momentum, theta = 1, m = 0;
  double sgd(double x) {
    m = momentum * m + theta - x;
    return theta -= lr * m;
  }
  double nesterov(double x) {
    const double delta = theta - x;
    m = momentum * m + delta;
    return theta -= lr * (delta + momentum * m);
  }
};

std::vector<Points> over_means(double (Momentum::*step)(double), int every) {
  std::vector<Points> expected;
  Points x(kFive, 1);
  Momentum outer{.lr = 0.7, .momentum = 0.6};
  for (int t = 0; t < kOuterSteps; ++t) {
    x = adapted(x, t);
    if ((t + 1) % every == 0) x.assign(x.size(), (outer.*step)(mean_of(x)));
    expected.push_back(x);
  }
  return expected;
}

TEST(Outer, NesterovOverMeansIsDiLoCo) {
  expect_near(
      values_of(
          {.scheme = "local", .mean_every = 4, .outer = "nesterov", .outer_lr = 0.7, .outer_momentum = 0.6}),
      over_means(&Momentum::nesterov, 4));
}

TEST(Outer, SgdOverMeansIsSlowMo) {
  expect_near(
      values_of({.scheme = "local", .mean_every = 4, .outer = "sgd", .outer_lr = 0.7, .outer_momentum = 0.6}),
      over_means(&Momentum::sgd, 4));
}

// Pier: up to step kWarmup a mean follows each exchange, and each fourth step m <- 0.6 m + Delta,
// theta <- x. Then come outer steps, whose lr and momentum change.
constexpr int kWarmup = 8;

Options pier(const std::string& outer) {
  return {.scheme = "local",
          .mean_every = 4,
          .outer = outer,
          .outer_momentum = 0.6,
          .outer_warmup = kWarmup,
          .outer_lr_at = "8:0 16:1 20:0.8",
          .outer_momentum_at = "8:0.95 16:0.95 16:0.5"};
}

// `exchange`: the scheme's, every so many steps.
std::vector<Points> over_means_of_pier(double (Momentum::*step)(double), int every,
                                       const std::function<Points(const Points&, int t)>& exchange) {
  std::vector<Points> expected;
  Points x(kFive, 1);
  Momentum outer{.lr = 0, .momentum = 0};
  for (int t = 1; t <= kOuterSteps; ++t) {
    x = adapted(x, t - 1);
    if (t % every == 0) x = exchange(x, t);
    if (t % 4 == 0 || (t <= kWarmup && t % every == 0)) x.assign(x.size(), mean_of(x));
    if (t % 4 == 0 && t <= kWarmup) {
      outer.m = 0.6 * outer.m + outer.theta - x[0];
      outer.theta = x[0];
    } else if (t % 4 == 0) {
      outer.momentum = t <= 16 ? 0.95 : 0.5;
      outer.lr = t == 12 ? 0.5 : t == 16 ? 1 : 0.8;
      x.assign(x.size(), (outer.*step)(x[0]));
    }
    expected.push_back(x);
  }
  return expected;
}

TEST(Outer, WarmsUpAndChangesAsInPier) {
  const auto nothing = [](const Points& x, int) { return x; };
  expect_near(values_of(pier("nesterov")), over_means_of_pier(&Momentum::nesterov, 1, nothing));
  expect_near(values_of(pier("sgd")), over_means_of_pier(&Momentum::sgd, 1, nothing));
}

TEST(Outer, WarmsUpWithExchangesToo) {
  Options options = pier("nesterov");
  options.scheme = "atc", options.topology = "ring", options.every = 2;
  const Schedule schedule = make_schedule("ring", kFive);
  expect_near(values_of(options), over_means_of_pier(&Momentum::nesterov, 2, [&](const Points& x, int t) {
                return mixed(x, schedule.at(t / 2 - 1));
              }));
}

// A warm-up of the whole run is an exact mean in each step, to the bit.
TEST(Outer, OnlyGathersMomentumInTheWarmUp) {
  const Options options{.scheme = "local", .mean_every = 4, .outer = "nesterov", .outer_warmup = kOuterSteps};
  EXPECT_EQ(values_of(options), values_of({.scheme = "local", .mean_every = 1}));
}

// Points of one number are this number, to the bit.
TEST(Outer, WithAConstantCourseIsTheSame) {
  for (const std::string outer : {"sgd", "nesterov"}) {
    const Options plain{
        .scheme = "local", .mean_every = 4, .outer = outer, .outer_lr = 0.3, .outer_momentum = 0.6};
    Options points = plain;
    points.outer_lr = 0.7, points.outer_momentum = 0.9;
    points.outer_lr_at = "0:0.3", points.outer_momentum_at = "0:0.6 100:0.6";
    EXPECT_EQ(values_of(points), values_of(plain));
  }
}

// They change over exchanges too.
TEST(Outer, ChangesWithoutMeans) {
  const Schedule schedule = make_schedule("ring", kFive);
  std::vector<Points> expected;
  std::vector<Momentum> outer(kFive, {.lr = 0.7, .momentum = 0.6});
  Points x(kFive, 1);
  for (int t = 1; t <= kOuterSteps; ++t) {
    x = adapted(x, t - 1);
    if (t % 2 == 0) {
      x = mixed(x, schedule.at(t / 2 - 1));
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (t > 10) outer[i].lr = t > 20 ? 0.2 : 0.2 + 0.05 * (20 - t);
        x[i] = outer[i].sgd(x[i]);
      }
    }
    expected.push_back(x);
  }
  expect_near(values_of({.topology = "ring",
                         .scheme = "atc",
                         .every = 2,
                         .outer = "sgd",
                         .outer_momentum = 0.6,
                         .outer_lr_at = "10:0.7 20:0.2"}),
              expected);
}

TEST(Outer, AllWorkersHaveTheSameWarmUpAndCourses) {
  const auto said = [](const std::function<void(Options&)>& change) {
    return refusal<UsageError>([&] {
      flock(2, [&](int i, World& world) {
        Options options{.scheme = "local", .mean_every = 4, .outer = "sgd"};
        if (i == 1) change(options);
        const Optimizer optimizer({parameter({4})}, SGD{}, options, world);
      });
    });
  };
  const std::string must = "; it must be the same on all";
  EXPECT_EQ(said([](Options& o) { o.outer_warmup = 8; }),
            "the workers differ in outer_warmup: 0 at worker 0, 8 at worker 1" + must);
  EXPECT_EQ(said([](Options& o) { o.outer_lr_at = "8:1"; }),
            "the workers differ in outer_lr_at: \"\" at worker 0, \"8:1\" at worker 1" + must);
  EXPECT_EQ(said([](Options& o) { o.outer_momentum_at = "8:0.5"; }),
            "the workers differ in outer_momentum_at: \"\" at worker 0, \"8:0.5\" at worker 1" + must);
}

// As in the authors' code: m <- a m + b mean(x - phi) + b (mean(phi) - phi), phi <- phi + m.
TEST(Outer, SgdOverPairsIsNoLoCo) {
  constexpr int kEvery = 2;
  constexpr double a = 0.5, b = 0.7;
  const Schedule schedule = make_schedule("one-peer-exponential", 4);
  std::vector<Points> expected;
  Points x(4, 1), phi = x, m(4, 0);
  for (int t = 0; t < kOuterSteps; ++t) {
    x = adapted(x, t);
    if ((t + 1) % kEvery == 0) {
      Points moves(4);
      for (std::size_t i = 0; i < 4; ++i) moves[i] = x[i] - phi[i];
      const Graph& round = schedule.at(t / kEvery);
      const Points move = mixed(moves, round), place = mixed(phi, round);
      for (std::size_t i = 0; i < 4; ++i) {
        m[i] = a * m[i] + b * move[i] + b * (place[i] - phi[i]);
        x[i] = phi[i] += m[i];
      }
    }
    expected.push_back(x);
  }
  const Options options{.topology = "one-peer-exponential",
                        .scheme = "atc",
                        .every = kEvery,
                        .outer = "sgd",
                        .outer_lr = b,
                        .outer_momentum = a};
  expect_near(values_of(options, 4), expected);
}

// A run of 256 values belongs to one of four fragments, each with a point and an outer optimizer of
// its own. `merge` is called for the one whose turn it is.
constexpr int kFragments = 4;
constexpr std::int64_t kFragmented = 5000;

using Merge = std::function<void(int fragment, std::vector<Points>& x, int round)>;

// Beside the run: by fragment and worker.
void expect_fragments(const Options& options, int every, const Merge& merge) {
  std::vector<Points> x(kFragments, Points(kFive, 1));
  for (int t = 0; t < kOuterSteps; ++t) {
    for (Points& fragment : x) fragment = adapted(fragment, t);
    const int round = t / every;
    const Mask mask = Mask::of_round(kFragments, 0, 0, static_cast<std::uint64_t>(round));
    if ((t + 1) % every == 0) merge(static_cast<int>(mask.turn), x, round);
  }
  flock(kFive, [&](int i, World& world) {
    const Tensor p = parameter({kFragmented}, 1);
    Optimizer optimizer({p}, SGD{.lr = kInnerLr}, options, world);
    for (int t = 0; t < kOuterSteps; ++t) {
      p.mutable_grad() = (0.5 + 0.2 * i) * (p.detach() - centre(i, t));
      optimizer.step();
    }
    nobody_leaves_yet(optimizer);
    for (std::int64_t at = 0; at < kFragmented; ++at) {
      const auto fragment = static_cast<std::size_t>(at) / Mask::kRun % kFragments;
      ASSERT_NEAR(p[at].item<double>(), x[fragment][static_cast<std::size_t>(i)], 1e-5) << at;
    }
  });
}

TEST(Outer, OfRandomKStepsWhatARoundHasMixed) {
  std::vector<std::vector<Momentum>> outer(kFragments, std::vector<Momentum>(kFive, {0.7, 0.6}));
  const Options options{.topology = "complete",
                        .scheme = "atc",
                        .one_in = kFragments,
                        .every = 2,
                        .outer = "nesterov",
                        .outer_momentum = 0.6};
  expect_fragments(options, options.every, [&](int fragment, std::vector<Points>& x, int) {
    Points& of = x[static_cast<std::size_t>(fragment)];
    const double mean = mean_of(of);
    for (std::size_t i = 0; i < of.size(); ++i)
      of[i] = outer[static_cast<std::size_t>(fragment)][i].nesterov(mean);
  });
}

// The fragment that was sent in the last exchange is merged, and the next one is sent.
TEST(StreamingDiLoCo, MergesOneFragmentAfterTheOther) {
  for (const std::string topology : {"complete", "ring"}) {
    SCOPED_TRACE(topology);
    const Options options{.topology = topology,
                          .scheme = {"streaming-diloco", {{"alpha", 0.3}}},
                          .one_in = kFragments,
                          .every = 2,
                          .outer_momentum = 0.6};
    const Schedule schedule = make_schedule(topology, kFive);
    std::vector<std::vector<Momentum>> outer(kFragments, std::vector<Momentum>(kFive, {0.7, 0.6}));
    std::vector<Points> sent(kFragments, Points(kFive, 1));
    expect_fragments(options, options.every, [&](int fragment, std::vector<Points>& x, int round) {
      const auto f = static_cast<std::size_t>(fragment);
      const Points y = mixed(sent[f], schedule.at(round));
      for (std::size_t i = 0; i < y.size(); ++i) x[f][i] += 0.7 * (outer[f][i].nesterov(y[i]) - sent[f][i]);
      sent = x;
    });
  }
}

TEST(StreamingDiLoCo, RefusesWhatDrivesWorkersApartAndAnotherOuterOptimizer) {
  EXPECT_EQ(refusal<UsageError>([] {
              check_options({.scheme = "streaming-diloco", .mean_every = 2, .outer = "sgd"}, 4, 1, false);
            }),
            "scheme \"streaming-diloco\" needs outer = \"none\", not \"sgd\": it has an outer optimizer of "
            "its own, with outer_lr and outer_momentum");
  EXPECT_EQ(
      refusal<UsageError>([] {
        check_options({.topology = "ring", .scheme = "streaming-diloco", .outer_lr = 8}, 4, 1, false);
      }),
      "scheme \"streaming-diloco\" with outer_lr = 8, outer_momentum = 0.9 and alpha = 0.5 drives workers "
      "apart over \"ring\": take less momentum or a smaller outer_lr");
}

// Over the complete graph its mean moves as DiLoCo's, if all losses have the same curvature; over
// any graph if workers take their mean after each exchange.
TEST(Gasloc, IsItsEquationAndDiLoCoOverTheCompleteGraph) {
  constexpr int kEvery = 3;
  for (const std::string topology : {"ring", "complete"}) {
    const Schedule schedule = make_schedule(topology, kFive);
    std::vector<Points> expected;
    Points x(kFive, 1), theta = x, last = x;
    for (int t = 0; t < kOuterSteps; ++t) {
      x = adapted(x, t);
      if ((t + 1) % kEvery == 0) {
        Points y = theta;
        for (std::size_t i = 0; i < x.size(); ++i) y[i] += 0.7 * (x[i] - theta[i]);
        theta = mixed(y, schedule.at(t / kEvery));
        for (std::size_t i = 0; i < x.size(); ++i) theta[i] += 0.6 * (y[i] - last[i]);
        x = theta, last = y;
      }
      expected.push_back(x);
    }
    SCOPED_TRACE(topology);
    expect_near(values_of({.topology = topology, .scheme = "gasloc", .every = kEvery, .outer_momentum = 0.6}),
                expected);
  }
  const auto means_of = [](const Options& options) {
    Points means;
    flock(kFive, [&](int i, World& world) {
      const Tensor p = parameter({100}, 1);
      Optimizer optimizer({p}, SGD{.lr = kInnerLr}, options, world);
      for (int t = 0; t < kOuterSteps; ++t) {
        p.mutable_grad() = p.detach() - centre(i, t);
        optimizer.step();
        const Consensus average(optimizer);
        if (i == 0) means.push_back(p[0].item<double>());
      }
    });
    return means;
  };
  const Points complete = means_of({.topology = "complete", .scheme = "gasloc", .every = kEvery});
  const Points ring = means_of({.topology = "ring", .scheme = "gasloc", .every = 3, .mean_every = 3});
  const Points diloco = means_of({.scheme = "local", .mean_every = kEvery, .outer = "nesterov"});
  for (std::size_t t = 0; t < diloco.size(); ++t) {
    EXPECT_NEAR(complete[t], diloco[t], 1e-5) << t;
    EXPECT_NEAR(ring[t], diloco[t], 1e-5) << t;
  }
}

// The momentum adds up what changing graphs leave. It is refused where it drives workers apart.
TEST(Gasloc, RefusesAMomentumThatDrivesWorkersApart) {
  EXPECT_EQ(
      refusal<UsageError>([] { check_options({.topology = "base-2", .scheme = "gasloc"}, 6, 1, false); }),
      "scheme \"gasloc\" with outer_momentum = 0.9 drives workers apart over \"base-2\": 0.6 does not, and "
      "a topology of one round, such as ring, takes more");
  EXPECT_NO_THROW(check_options({.topology = "ring", .scheme = "gasloc"}, 6, 1, false));
}

TEST(Outer, WithLr1AndNoMomentumChangesNothing) {
  for (const std::string outer : {"sgd", "nesterov"}) {
    expect_near(values_of({.topology = "ring",
                           .scheme = "atc",
                           .every = 2,
                           .outer = outer,
                           .outer_lr = 1,
                           .outer_momentum = 0}),
                values_of({.topology = "ring", .scheme = "atc", .every = 2}));
  }
}

// The parameters that a user sets are where the next outer step begins, without momentum.
TEST(Outer, BeginsAgainWhereTheUserDoes) {
  flock(2, [](int i, World& world) {
    const Tensor p = parameter({10});
    Optimizer optimizer(
        {p}, SGD{.lr = 1},
        {.scheme = "local", .mean_every = 2, .outer = "nesterov", .outer_lr = 1, .outer_momentum = 0.5},
        world);
    const auto step = [&](double g) {
      p.mutable_grad() = at::full({10}, g);
      optimizer.step();
    };
    for (int t = 0; t < 4; ++t) step(1.0 + i);
    p.detach().fill_(100);
    optimizer.begin_again();
    step(0), step(0);
    EXPECT_TRUE(is_all(p, 100)) << p[0];
    step(1), step(1);  // Delta = 2: 100 - (2 + 0.5 x 2)
    EXPECT_TRUE(is_all(p, 97)) << p[0];
    {
      Consensus(optimizer).keep();
    }
    step(0), step(0);
    EXPECT_TRUE(is_all(p, 97)) << p[0];
    nobody_leaves_yet(optimizer);
  });
}

// The momentum is lost then, but the warm-up is not repeated.
TEST(Outer, BeginsAgainAfterItsWarmUp) {
  flock(2, [](int, World& world) {
    const Tensor p = parameter({10}, 100);
    Optimizer optimizer({p}, SGD{.lr = 1},
                        {.scheme = "local",
                         .mean_every = 2,
                         .outer = "sgd",
                         .outer_lr = 0.5,
                         .outer_momentum = 0.5,
                         .outer_warmup = 2},
                        world);
    const auto two_steps = [&] {
      for (int t = 0; t < 2; ++t) {
        p.mutable_grad() = at::ones({10});
        optimizer.step();
      }
    };
    two_steps();
    EXPECT_TRUE(is_all(p, 98)) << p[0];
    optimizer.begin_again();
    two_steps();  // Delta = 2, m = 2: 98 - 0.5 x 2
    EXPECT_TRUE(is_all(p, 97)) << p[0];
    two_steps();  // m = 1 + 2
    EXPECT_TRUE(is_all(p, 95.5)) << p[0];
    nobody_leaves_yet(optimizer);
  });
}

// A later group begins where its parameters are; the others go on.
TEST(Outer, ALaterGroupBeginsFresh) {
  flock(2, [](int, World& world) {
    const Tensor p = parameter({10}), q = parameter({10}, 5);
    Optimizer optimizer(
        {p}, SGD{.lr = 1},
        {.scheme = "local", .mean_every = 1, .outer = "sgd", .outer_lr = 1, .outer_momentum = 0.5}, world);
    p.mutable_grad() = at::ones({10});
    optimizer.step();
    EXPECT_TRUE(is_all(p, -1)) << p[0];
    optimizer.add_param_group({{q}});
    p.mutable_grad() = at::zeros({10});
    q.mutable_grad() = at::ones({10});
    optimizer.step();
    EXPECT_TRUE(is_all(p, -1.5)) << p[0];
    EXPECT_TRUE(is_all(q, 4)) << q[0];
    nobody_leaves_yet(optimizer);
  });
}

}  // namespace
}  // namespace starling
