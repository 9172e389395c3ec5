#include "starling/train/planned_scheme.h"

#include <string>
#include <vector>

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "starling/optim/options.h"
#include "starling/optim/schemes/table.h"
#include "tests/plan/closed_forms.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using testing::HasSubstr;

TEST(PlannedAs, FollowsTheSchemesOwnOptions) {
  EXPECT_EQ(planned_as("cta"), Mixing::ahead);
  EXPECT_EQ(planned_as("gradient-tracking"), Mixing::ahead);
  EXPECT_EQ(planned_as("power-gossip"), Mixing::ahead);
  EXPECT_EQ(planned_as("atc"), Mixing::inside);
  EXPECT_EQ(planned_as("demo"), Mixing::inside);
  EXPECT_EQ(planned_as("push-sum"), Mixing::inside);
  EXPECT_EQ(planned_as({"push-sum", {{"staleness", 1}}}), Mixing::ahead);
  EXPECT_EQ(planned_as("a2cid2"), std::nullopt);
  EXPECT_EQ(planned_as("all-reduce"), std::nullopt);
}

constexpr double kRate = 1e8;             // bytes a second
constexpr double kBytes = 6.4e6;          // of the model, in two blocks
constexpr double kF = 4, kB = 4, kU = 2;  // ms of forward, backward and updates
constexpr double kStep = kF + kB + kU;
constexpr double kC = kBytes / kRate * 1e3;  // ms of the model on a link: 64

// Workers on hosts of their own; worker 0 takes `straggler` times as long.
Profile profile_of(int n, double straggler = 1) {
  Profile profile;
  for (int i = 0; i < n; ++i) {
    profile.hosts.push_back({.name = std::to_string(i), .workers = {i}, .send = kRate, .receive = kRate});
    const double times = (i == 0 ? straggler : 1) / 1e3;
    profile.compute.push_back({.data_wait = {0},
                               .forward = {kF * times},
                               .backward = {{kB / 2 * times}, {kB / 2 * times}},
                               .update = {{kU / 2 * times}, {kU / 2 * times}}});
  }
  profile.blocks = {kBytes / 2, kBytes / 2};
  return profile;
}

double step_ms(const Options& options, int n = 4, double straggler = 1) {
  const Profile profile = profile_of(n, straggler);
  const Schedule schedule = schedule_of(options, n, 1);
  return 1e3 *
         simulate(network_of(profile), profile, options, schedule, typical_block(), {.iterations = 60}).step;
}

// One exchange of a block of the typical shape, of its bytes in fp32.
double share_of(const Options& options, int n = 4) {
  const Block block = typical_block();
  return sent_size(block, schedule_of(options, n, 1), options).block / (4.0 * block.length);
}

struct Planned {
  Options options;
  double wanted;  // ms
};

TEST(PlannedStep, IsThatOfTheFormsWithWhatTheSchemeSends) {
  constexpr double kSide = kTypicalSide;
  // A sample of 1 in 512 values, 16384 values, and as many indices, two in a float.
  constexpr double kDemo = (kSide * kSide / 512 + 1.5 * 16384) / (kSide * kSide);
  // The same with four levels in place of the values.
  constexpr double kSparseLoco = (kSide * kSide / 512 + 4 + 16384 / 2) / (kSide * kSide);
  // An edge's checksum and one product.
  constexpr double kPowerGossip = (2 + kSide) / (kSide * kSide);
  EXPECT_NEAR(share_of({.scheme = "demo", .one_in = 64}), kDemo, 1e-12);
  EXPECT_NEAR(share_of({.topology = "complete", .scheme = "sparse-loco", .one_in = 64}), kSparseLoco, 1e-12);
  EXPECT_NEAR(share_of({.scheme = "power-gossip"}), kPowerGossip, 1e-12);

  // Ahead: max(compute, link). Inside: closed_forms.h.
  const auto inside = [](double link) {
    return 1e3 * step_inside(kF / 1e3, kB / 1e3, {kU / 2e3, kU / 2e3}, {link / 2e3, link / 2e3});
  };
  const std::vector<Planned> cases{
      {{}, kC},
      {{.wire = Wire::bf16}, kC / 2},
      {{.wire = Wire::int8}, kC / 4},
      {{.wire = Wire::int4}, kStep},
      {{.one_in = 4}, kC / 4},
      {{.every = 4}, kC / 4},
      {{.wire = Wire::bf16, .every = 2}, kC / 4},
      {{.every = 100}, kStep},
      {{.scheme = "gradient-tracking"}, 2 * kC},
      {{.scheme = "momentum-tracking", .wire = Wire::bf16}, kC},
      {{.scheme = "dsgd-ac", .every = 2}, kC / 2},
      {{.scheme = "streaming-diloco", .one_in = 4, .outer_lr = 1, .outer_momentum = 0}, kC / 4},
      {{.scheme = "streaming-diloco", .one_in = 2, .every = 2, .outer_lr = 1, .outer_momentum = 0}, kC / 4},
      {{.scheme = "ceca-2p"}, kC},
      {{.scheme = "power-gossip"}, kStep},
      {{.scheme = {"push-sum", {{"staleness", 1}}}}, kC},
      {{.scheme = {"push-sum", {{"staleness", 4}}}}, kC / 4},
      {{.scheme = "atc"}, inside(kC)},
      {{.scheme = "quasi-global"}, inside(kC)},
      {{.topology = "ring", .scheme = "exact-diffusion"}, inside(2 * kC)},
      {{.topology = "ring", .scheme = "choco", .one_in = 16}, inside(2 * kC / 8)},
      {{.topology = "ring", .scheme = "gasloc", .outer_momentum = 0}, inside(2 * kC)},
      {{.scheme = "push-sum"}, inside(kC)},
      {{.scheme = "push-diging"}, inside(2 * kC)},
      {{.scheme = "demo", .one_in = 64}, inside(3 * kDemo * kC)},
      {{.topology = "complete", .scheme = "sparse-loco", .one_in = 64}, inside(3 * kSparseLoco * kC)},
      // Three steps of the worker's own, and one that exchanges.
      {{.scheme = "atc", .every = 4}, (3 * kStep + inside(kC)) / 4},
      {{.topology = "complete", .scheme = "sparse-loco", .one_in = 64, .every = 10},
       (9 * kStep + inside(3 * kSparseLoco * kC)) / 10},
      {{.scheme = "local"}, kStep},
  };
  for (const Planned& one : cases) {
    const Options& o = one.options;
    check_options(o, 4, 1, false);
    EXPECT_NEAR(step_ms(o), one.wanted, 0.015 * one.wanted) << fmt::format(
        "{} over {}, {}, one in {}, every {}", o.scheme.name, o.topology, name_of(o.wire), o.one_in, o.every);
  }
}

// An exact mean of four workers is two rounds with the whole model.
TEST(PlannedStep, CountsExactMeans) {
  for (const int every : {1, 5, 20, 40}) {
    EXPECT_NEAR(step_ms({.scheme = "local", .mean_every = every}), kStep + 2 * kC / every, 1e-3) << every;
    EXPECT_NEAR(step_ms({.every = 20 * every, .mean_every = 20 * every}), kStep + 2 * kC / (20 * every), 0.05)
        << every;
    EXPECT_NEAR(step_ms({.wire = Wire::int4, .mean_every = every}), kStep + 2 * kC / every, 0.3) << every;
  }
  // More seldom than the horizon is long.
  EXPECT_NEAR(step_ms({.wire = Wire::int4, .mean_every = 1000}), kStep + 2 * kC / 1000, 0.3);
  EXPECT_NEAR(step_ms({.scheme = "local", .mean_every = 10}, 1), kStep, 1e-9);
}

TEST(PlannedStep, OfAStragglerIsWaitedForInMeansAlone) {
  // Without means each worker goes on by itself: the mean of 3, 1, 1 and 1.
  EXPECT_NEAR(step_ms({.scheme = "local"}, 4, 3), 1.5 * kStep, 1e-6);
  EXPECT_NEAR(step_ms({.scheme = "local", .mean_every = 8}, 4, 3), 3 * kStep + 2 * kC / 8, 1e-3);
  EXPECT_NEAR(step_ms({.every = 10}, 4, 3), 3 * kStep, 0.1);
}

TEST(PlannedStep, IsKnownForEverySchemeInRounds) {
  for (const SchemeInfo* const info : schemes()) {
    const std::string name(info->name);
    Options options{.topology = info->traits.edges == EdgeKind::lasting ? "complete" : "base-2",
                    .scheme = name};
    if (info->traits.path == Path::ahead || info->traits.path == Path::inside) {
      EXPECT_GE(step_ms(options), kStep * 0.99) << name;
      continue;
    }
    const std::string why = info->traits.path == Path::pairs
                                ? "its workers average in pairs beside training, and wait for nobody"
                                : "it averages gradients within backward()";
    EXPECT_EQ(refusal<UsageError>([&] { mixing_of(name); }),
              fmt::format("scheme \"{}\" has no exchange in its steps: {}", name, why));
  }
}

TEST(WorkOn, ScalesWithTheShapesThatItIsGiven) {
  const Profile profile = profile_of(4);
  const Options options{.scheme = "power-gossip"};
  const Schedule schedule = schedule_of(options, 4, 1);
  const std::vector<at::Tensor> wide{at::empty({8, 800}, at::TensorOptions(at::kFloat).device(at::kMeta)),
                                     at::empty({100}, at::TensorOptions(at::kFloat).device(at::kMeta))};
  // The longer product, the checksum, and the values that are no matrix.
  const double values = 800 + 2 + 100, all = 8 * 800 + 100;
  const Work work = work_on(profile, options, schedule, as_one_block(wide));
  EXPECT_NEAR(work.block_bytes.front(), profile.blocks.front() * values / all, 1e-6);
  EXPECT_FALSE(work.groups);
}

TEST(WorkOn, SaysWhetherGroupsTakeTheirMean) {
  const Profile profile = profile_of(4);
  const auto groups = [&](const Options& options) {
    return work_on(profile, options, schedule_of(options, 4, 1), typical_block()).groups;
  };
  EXPECT_TRUE(groups({.scheme = "gradient-tracking"}));
  EXPECT_FALSE(groups({.wire = Wire::int8}));
  EXPECT_FALSE(groups({.topology = "ring", .scheme = "choco", .one_in = 16}));
  EXPECT_FALSE(groups({.scheme = "push-sum"}));
}

TEST(WorkOn, AMeanBetweenTwoExchangesIsRefused) {
  EXPECT_THAT(
      refusal<UsageError>([] { step_ms({.scheme = {"push-sum", {{"staleness", 3}}}, .mean_every = 4}); }),
      HasSubstr("a mean every 4 steps is no multiple of an exchange every 3"));
}

}  // namespace
}  // namespace starling
