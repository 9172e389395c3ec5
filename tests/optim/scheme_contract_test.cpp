// Every scheme keeps the sum of all parameters, and goes on from what was saved.
#include "tests/optim/scheme_contract.h"

#include "tests/optim/fragile_network.h"

namespace starling {

using at::Tensor;

STARLING_EVERY_SCHEME(SchemeContract);

// In virtual time a gradient takes all workers equally long. Otherwise momentum would keep the mean
// of x and x~ together, but not that of x alone (gossip/pair_averaging.cpp).
void SchemeContract::expect_the_mean_is_kept(at::ScalarType type) const {
  virtual_flock(kMany, [&](int i, World& world, VirtualTime& time) {
    const Tensor p = parameter({50, 100}, 0, type), q = parameter({300}, 0, type);  // a matrix, a vector
    // Without momentum, which would carry on the way from the start to these values.
    Optimizer optimizer({p, q}, SGD{.lr = 0.1}, without_momentum(), world);
    p.detach().add_(1.0 + i), q.detach().sub_(2.0 * i);
    const auto mean = [&] {
      const Consensus average(optimizer);
      return at::cat({p.detach().flatten().to(at::kFloat), q.detach().to(at::kFloat)}).clone();
    };
    const Tensor before = mean();
    const double distance = optimizer.consensus_distance();
    for (int t = 0; t < 20; ++t) {
      time.sleep(10ms);
      p.mutable_grad() = at::zeros_like(p);
      optimizer.step();
    }
    nobody_leaves_yet(optimizer);
    // A scheme that tracks gradients keeps their sum. It takes the mean of two x at one end only.
    if (!info().traits.sums_gradients) {
      EXPECT_TRUE(at::allclose(mean(), before, 1e-3, 1e-3)) << mean()[0] << " " << before[0];
    }
    if (mixes() && !in_pairs()) {
      EXPECT_LT(optimizer.consensus_distance(), 0.5 * distance);
    }
    if (!mixes()) {
      EXPECT_EQ(optimizer.consensus_distance(), distance);
    }
  });
}

namespace {

TEST_P(SchemeContract, KeepsTheMeanOfAllParametersUsedOrNot) { expect_the_mean_is_kept(at::kFloat); }

TEST_P(SchemeContract, KeepsTheMeanOfMasters) { expect_the_mean_is_kept(at::kBFloat16); }

// Both ends lose the same by rounding. So the mean is exact, and workers agree up to the format.
TEST_P(SchemeContract, KeepsTheMeanWithEveryWire) {
  constexpr int kSteps = 120, kMoving = 20;
  if (info().traits.sums_gradients) GTEST_SKIP() << "keeps the sum of tracked gradients, not of x";
  const std::map<Wire, double> apart{
      {Wire::fp32, 1e-5}, {Wire::bf16, 8e-3}, {Wire::fp16, 1e-3}, {Wire::int8, 1e-3}, {Wire::int4, 5e-2}};
  double should = 0;
  for (int i = 0; i < kMany; ++i) {
    for (int t = 1; t <= kMoving; ++t) should -= 0.1 * centre(i, t) / kMany;
  }
  for (const auto& [wire, most] : apart) {
    if (std::ranges::count(info().traits.refused_wires, wire, &RefusedWire::wire) > 0) continue;
    // On its own directed edges, modular codes keep the sum if nothing wraps, as it does here.
    if (is_modular(wire) && info().traits.edges == EdgeKind::own) continue;
    SCOPED_TRACE(name_of(wire));
    Options narrow = without_momentum();
    narrow.wire = wire;
    virtual_flock(kMany, [&](int i, World& world, VirtualTime& time) {
      const Tensor p = parameter({5, 10});
      Optimizer optimizer({p}, SGD{.lr = 0.1}, narrow, world);
      for (int t = 1; t <= kSteps; ++t) {
        time.sleep(10ms);
        p.mutable_grad() = at::full({5, 10}, t <= kMoving ? centre(i, t) : 0.0);
        optimizer.step();
      }
      const Tensor own = p.detach().clone();
      const Consensus average(optimizer);
      EXPECT_TRUE(at::allclose(p.detach(), at::full({5, 10}, should), 0, 1e-5)) << p[0] << should;
      if (mixes() && !in_pairs()) {
        EXPECT_TRUE(at::allclose(own, at::full({5, 10}, should), 0, most)) << own[0] << should;
      }
    });
  }
}

TEST_P(SchemeContract, ALostSwapKeepsTheSumOrCountsItsDrift) {
  if (!mixes()) GTEST_SKIP() << "no swaps";
  std::uint64_t aborted = 0, drifts = 0;  // one worker at a time adds to them
  double drift = 0, most = 0;
  std::array<std::array<std::uint64_t, kMany>, kMany> mixed{};
  fragile_flock(kMany, [&](int rank, World& world, VirtualTime& time, FragileNetwork& network) {
    const Tensor x = parameter({40, 25});  // crosses a link in 4 ms
    Optimizer optimizer({x}, SGD{.lr = 1}, without_momentum(), world);
    x.mutable_grad() = at::full({40, 25}, static_cast<double>(rank * rank));
    optimizer.step();
    x.mutable_grad() = at::zeros_like(x.detach());
    if (rank == 0) network.break_often(time, 100);
    for (int t = 0; t < 240; ++t) {
      time.sleep(10ms);
      x.mutable_grad().zero_();  // a scheme may have written to it
      optimizer.step();
    }
    optimizer.wait_for_all();
    {
      const Consensus average(optimizer);
      EXPECT_EQ(average.workers(), kMany);
      drift = std::abs(x.mean().item<double>() + 14.0 / 4);  // 0, 1, 4, 9
      EXPECT_LT(average.distance(), 1e-2);
    }
    const Statistics now = optimizer.statistics();
    aborted += now.aborted + now.late, drifts += now.directed_aborted;
    for (const auto& [neighbour, blocks] : now.mixed)
      mixed[static_cast<std::size_t>(rank)][static_cast<std::size_t>(neighbour)] = blocks;
    most = 9;  // the workers were as far apart
    nobody_leaves_yet(optimizer);
  });
  EXPECT_GT(aborted, 0U) << "nothing was lost";
  const bool both_ways =
      info().traits.edges == EdgeKind::symmetric || info().traits.edges == EdgeKind::lasting;
  for (std::size_t i = 0; i < kMany && both_ways; ++i) {
    EXPECT_GT(std::accumulate(mixed[i].begin(), mixed[i].end(), 0ULL), 0U) << "worker " << i;
    for (std::size_t j = 0; j < i; ++j) EXPECT_EQ(mixed[i][j], mixed[j][i]) << "workers " << i << ", " << j;
  }
  if (info().traits.sums_gradients) return;
  EXPECT_LT(drift, drifts == 0 ? 1e-4 : most) << drifts;
}

// The second time right after an average that was kept.
TEST_P(SchemeContract, GoesOnFromWhatWasSaved) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    flock(kMany, [&](int i, World& world) {
      const Tensor p = parameter({50, 100}, 0, type), again = parameter({50, 100}, 0, type);
      const AccumAdamW rule{.lr = 0.01, .window = 3};
      Optimizer optimizer({p}, rule, options(), world);
      train({p}, optimizer, i, 0, 10);
      nobody_leaves_yet(optimizer);
      if (type == at::kBFloat16) Consensus(optimizer).keep();
      const OptimizerState saved = copy_of(optimizer.state());
      Optimizer other({again}, rule, options(), world);
      train({again}, other, i, 0, 3);  // something else to forget
      nobody_leaves_yet(other);
      other.set_state(saved);
      const OptimizerState taken = other.state();
      for (const auto& [name, tensor] : saved.tensors)
        EXPECT_TRUE(at::equal(tensor, taken.tensors.at(name))) << name;
      if (in_pairs()) return;  // real clocks do not repeat
      train({p}, optimizer, i, 10, 15);
      train({again}, other, i, 10, 15);
      EXPECT_TRUE(at::equal(p, again)) << "worker " << i;
      EXPECT_TRUE(at::equal(optimizer.weights(p), other.weights(again)));
      nobody_leaves_yet(optimizer);
      nobody_leaves_yet(other);
    });
  }
}

TEST_P(SchemeContract, NamesItsStateAndHowItBegins) {
  flock(kMany, [&](int i, World& world) {
    const Tensor p = parameter({10, 10});
    Optimizer optimizer({p}, SGD{}, options(), world);
    train({p}, optimizer, i, 0, 2);
    nobody_leaves_yet(optimizer);
    const OptimizerState state = optimizer.state();
    const bool takes_newcomers = info().traits.path != Path::gradients;
    EXPECT_EQ(info().traits.at_a_join.empty(), !takes_newcomers || state.of_scheme.empty());
    std::size_t known = 4;  // model.0.0, options.0, steps, rng
    for (const SchemeState& field : state.of_scheme) {
      const std::string name = field.numbers ? field.name : field.name + ".0.0";
      EXPECT_TRUE(state.tensors.contains(name)) << name;
      ++known;
    }
    EXPECT_EQ(state.tensors.size(), known);
  });
}

// A file may say anything. Whatever the numbers are, they are taken, or refused in one line.
TEST_P(SchemeContract, StrangeNumbersInItsStateAreTakenOrRefusedInOneLine) {
  Options few = options();
  few.one_in = 2;  // then there may be more state
  if (refusal<UsageError>([&] { check_options(few, kMany, kMany, false); }) != "accepted") few.one_in = 1;
  flock(kMany, [&](int i, World& world) {
    world.log = [](Level, const std::string&) {};
    const Tensor p = parameter({10, 10});
    Optimizer optimizer({p}, SGD{.lr = 0.1}, few, world);
    train({p}, optimizer, i, 0, 3);
    nobody_leaves_yet(optimizer);
    const OptimizerState good = copy_of(optimizer.state());
    for (const SchemeState& field : good.of_scheme) {
      if (!field.numbers) continue;
      for (const double number :
           {std::nan(""), double{INFINITY}, -double{INFINITY}, -1.0, 0.5, 0x1p53, 1e300, -1e300}) {
        OptimizerState strange = copy_of(good);
        strange.tensors.at(field.name).fill_(number);
        const std::string said = refusal<Error>([&] { optimizer.set_state(strange); });
        EXPECT_TRUE(std::isfinite(number) || said != "accepted") << field.name << " is " << number;
        EXPECT_EQ(said.find('\n'), std::string::npos) << said;
        if (said == "accepted") {
          train({p}, optimizer, i, 3, 5);
          EXPECT_TRUE(p.isfinite().all().item<bool>()) << field.name << " is " << number;
        } else {
          EXPECT_THAT(said, testing::HasSubstr("\"" + field.name + "\": "));
        }
        optimizer.set_state(good);
      }
    }
    train({p}, optimizer, i, 3, 5);
    EXPECT_TRUE(p.isfinite().all().item<bool>());
    nobody_leaves_yet(optimizer);
  });
}

// The old group goes on as if there were no new one, which begins with rank 0's values everywhere.
TEST_P(SchemeContract, TakesAParameterGroupInMidRun) {
  std::vector<Tensor> fixed(kMany);
  std::vector<std::uint64_t> rounds(kMany);
  const auto run = [&](bool grows) {
    virtual_flock(kMany, [&](int i, World& world, VirtualTime& time) {
      const Tensor early = parameter({90'000}, 1), late = parameter({70'000}, i == 0 ? 3 : i);
      Optimizer optimizer({early}, Adam{.lr = 0.1}, uncoupled(), world);
      for (int t = 0; t < 10; ++t) {
        time.sleep(10ms);
        if (grows && t == 5) optimizer.add_param_group({{late}});
        early.mutable_grad() = early.detach() - centre(i, t);
        if (grows && t > 5) late.mutable_grad() = late.detach() - centre(i, t);
        optimizer.step();
        if (grows && t == 5) {
          EXPECT_TRUE(at::equal(late.detach(), at::full({70'000}, 3.0)));  // no gradient yet
        }
      }
      Tensor& reference = fixed[static_cast<std::size_t>(i)];
      if (!grows) reference = early.detach().clone();
      if (!grows) rounds[static_cast<std::size_t>(i)] = optimizer.statistics().rounds;
      // The clock of gossip and a schedule of several rounds begin anew.
      if (grows && !in_pairs() && schedule_of(options(), kMany, 1).rounds.size() <= 1) {
        EXPECT_TRUE(at::equal(early.detach(), reference)) << "worker " << i;
      }
      EXPECT_EQ(optimizer.parameter_count(), grows ? 160'000 : 90'000);
      if (!in_pairs()) {  // a scheme that sends ahead does so once more
        const std::uint64_t alone = rounds[static_cast<std::size_t>(i)];
        EXPECT_EQ(optimizer.statistics().rounds, grows && alone > 10 ? alone + 1 : alone);
      }
      optimizer.wait_for_all();
      const Consensus average(optimizer);
      EXPECT_EQ(average.workers(), kMany);
      EXPECT_LT(average.distance(), 1);
      for (const Tensor& x : {early, late}) EXPECT_TRUE(at::isfinite(x).all().item<bool>());
    });
  };
  run(false), run(true);
}

// The rule for uneven data: a worker that is done says so. The others go on without it, with its
// weight on themselves, and the average at the end waits for all.
TEST_P(SchemeContract, WorkersWithDifferentNumbersOfBatchesEndWithoutAHang) {
  if (!mixes()) GTEST_SKIP() << "every step needs all workers";
  flock(kMany, [&](int i, World& world) {
    const Tensor p = parameter({100'000}, i);
    Optimizer optimizer({p}, SGD{.lr = 0.1}, options(), world);
    train({p}, optimizer, i, 0, 4 + 3 * i);
    const Tensor before = p.detach().clone();
    {
      const Consensus average(optimizer);
      EXPECT_EQ(average.workers(), kMany);
    }
    if (in_pairs()) return;  // it goes on with what gossip has by then
    EXPECT_TRUE(at::equal(p.detach(), before));
  });
}

}  // namespace
}  // namespace starling
