// The average model under every scheme of the table, each with its options: what is kept stays, and
// what is not finite is left out.
#include "starling/optim/consensus.h"

#include "tests/optim/every_scheme.h"

namespace starling {
namespace {

using at::Tensor;
using testing::HasSubstr;

constexpr int kMembers = 6;
constexpr std::int64_t kHeight = 50, kWidth = 100, kValues = kHeight * kWidth;  // a matrix

struct Setting {
  std::string name;
  Options options;
  at::ScalarType type = at::kFloat;
  bool around = false;  // torch's SGD

  // How exact numbers of size 1 are that nothing changes. One bit of bf16 may turn. The grids of
  // pairs are those of their last averagings.
  double exact() const {
    if (averages_in_pairs(options) && is_modular(options.wire)) return 0.1;
    return type != at::kFloat || options.wire == Wire::bf16 ? 1e-2 : 1e-5;
  }
  // How far apart nothing takes workers that agree. A push moves a value at most to the next number
  // of its wire, as often as it comes.
  double apart() const { return options.wire == Wire::bf16 ? exact() : exact() / 10; }
};

// Those that the scheme takes.
std::vector<Setting> settings_of(const SchemeInfo& info) {
  const Options plain = options_of(info);
  std::vector<Setting> all{{"default", plain}, {"bf16 masters", plain, at::kBFloat16}, {"around", plain}};
  all.back().around = true;
  const auto add = [&](const std::string& name, const auto& change) {
    all.push_back({name, plain});
    change(all.back().options);
  };
  for (const std::string topology : {"base-2", "complete"}) {
    add(topology, [&](Options& o) { o.topology = topology; });
    add(topology + ", one in 4", [&](Options& o) { o.topology = topology, o.one_in = 4; });
    add(topology + ", int8", [&](Options& o) { o.topology = topology, o.wire = Wire::int8; });
  }
  add("one in 4", [](Options& o) { o.one_in = 4; });
  add("bf16", [](Options& o) { o.wire = Wire::bf16; });
  add("int4", [](Options& o) { o.wire = Wire::int4; });
  for (const std::int64_t steps : {1, 3})
    add("staleness " + std::to_string(steps), [&](Options& o) { o.scheme.options = {{"staleness", steps}}; });
  add("nodes", [](Options& o) { o.hierarchy = "node", o.workers_per_node = 2; });
  add("every fourth step", [](Options& o) { o.every = 4; });
  add("means of every third step", [](Options& o) { o.mean_every = 3; });
  add("an outer optimizer of means", [](Options& o) { o.mean_every = 3, o.outer = "nesterov"; });
  std::erase_if(all, [&](const Setting& s) {
    try {
      check_options(s.options, kMembers, 1, s.around);
      return s.type != at::kFloat && !needs_float32(s.options, s.around).empty();
    } catch (const UsageError&) {
      return true;
    }
  });
  return all;
}

// A worker's parameter, and its optimizer by SGD with lr 1.
struct Member {
  Member(const Setting& setting, World& world)
      : p(parameter({kHeight, kWidth}, 0, setting.type)), exact(setting.exact()), apart(setting.apart()) {
    if (setting.around) {
      inner = std::make_unique<torch::optim::SGD>(std::vector<Tensor>{p}, torch::optim::SGDOptions(1));
      optimizer = std::make_unique<Optimizer>(*inner, setting.options, world);
    } else {
      optimizer = std::make_unique<Optimizer>(std::vector<Tensor>{p}, SGD{.lr = 1}, setting.options, world);
    }
  }
  void set(double value) const { p.detach().fill_(value); }
  // Steps with gradients of this size, others for each worker, step and value.
  void train(int rank, int from, int steps, double size) {
    for (int t = from; t < from + steps; ++t) {
      p.mutable_grad() =
          (at::sin(at::arange(kValues) * 0.7 + 2.0 * rank + 3.0 * t) * size).view_as(p).to(p.scalar_type());
      optimizer->step();
    }
  }
  Tensor p;
  double exact;
  double apart;
  std::unique_ptr<torch::optim::SGD> inner;
  std::unique_ptr<Optimizer> optimizer;
};

class ConsensusOf : public EveryScheme {
 protected:
  // f(member, rank) on kMembers workers, with each of the scheme's settings.
  void with_each(const std::function<void(Member&, int)>& f) const {
    for (const Setting& setting : settings_of(info())) {
      SCOPED_TRACE(setting.name);
      flock(kMembers, [&](int i, World& world) {
        Member member(setting, world);
        f(member, i);
        member.optimizer->wait_for_all();
        nobody_leaves_yet(*member.optimizer);
        EXPECT_FALSE(testing::Test::HasFailure()) << info().name << ": " << setting.name;
      });
      if (testing::Test::HasFailure()) return;
    }
  }
};

TEST_P(ConsensusOf, WhatIsKeptIsWhereTheNextStepStarts) {
  with_each([](Member& member, int i) {
    Optimizer& optimizer = *member.optimizer;
    for (int turn = 0; turn < 2; ++turn) {
      member.train(i, 10 * turn, 6, 1);
      Tensor kept;
      {
        Consensus average(optimizer);
        average.keep();
        kept = member.p.detach().clone();
      }
      member.train(i, 0, 2, 0);
      EXPECT_LT(optimizer.consensus_distance(), member.apart);
      EXPECT_TRUE(at::allclose(member.p, kept, member.exact, member.exact));
    }
  });
}

// A worker's step is at most 1, and so are six workers' from their mean.
TEST_P(ConsensusOf, KeptAfterEveryStepWorkersStayTogether) {
  with_each([](Member& member, int i) {
    for (int t = 0; t < 40; ++t) {
      member.train(i, t, 1, 1);
      Consensus average(*member.optimizer);
      EXPECT_LT(average.distance(), 1.5) << "step " << t;
      average.keep();
    }
  });
}

TEST_P(ConsensusOf, WhatAllHaveSetIsWhereTheyBeginAgain) {
  with_each([](Member& member, int i) {
    member.set(1000.0 * i);
    member.train(i, 0, 3, 0.1);
    member.set(1);
    member.optimizer->begin_again();
    member.train(i, 0, 3, 0);
    EXPECT_TRUE(at::allclose(member.p, at::ones_like(member.p))) << member.p[0];
  });
}

// For example, to test with a moving average of one's own.
TEST_P(ConsensusOf, WhatIsSwappedInAndBackChangesNothing) {
  for (const Setting& setting : settings_of(info())) {
    SCOPED_TRACE(setting.name);
    const auto run = [&](bool swaps) {
      std::vector<Tensor> ends(kMembers);
      virtual_flock(kMembers, [&](int i, World& world, VirtualTime& time) {
        Member member(setting, world);
        for (int t = 0; t < 10; ++t) {
          time.sleep(std::chrono::milliseconds(10));
          member.train(i, t, 1, 1);
          if (!swaps) continue;
          const Tensor own = member.p.detach().clone();
          member.set(7);
          member.p.detach().copy_(own);
        }
        ends[static_cast<std::size_t>(i)] = member.p.detach().clone();
        nobody_leaves_yet(*member.optimizer);
      });
      return ends;
    };
    const std::vector<Tensor> plain = run(false), swapped = run(true);
    for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::equal(plain[i], swapped[i])) << i;
  }
}

TEST_P(ConsensusOf, AWorkerThatIsNotFiniteIsLeftOut) {
  flock(kMany, [&](int i, World& world) {
    LogLines warned;
    world.log = warned.log();
    Member member({"", options()}, world);
    member.set(i == 2 ? NAN : 2.0 + i);
    member.optimizer->begin_again();
    {
      const Consensus average(*member.optimizer);
      EXPECT_EQ(average.workers(), 3);
      EXPECT_TRUE(at::allclose(member.p, at::full_like(member.p, (2.0 + 3 + 5) / 3))) << member.p[0];
      EXPECT_NEAR(average.distance(), std::sqrt((16.0 + 1 + 25) / 9 / 3 * 1), 1e-3);
    }
    EXPECT_EQ(warned.text().find("are not finite") != std::string::npos, i == 2) << warned.text();
    member.set(std::numeric_limits<double>::infinity());
    EXPECT_THAT(refusal<Error>([&] { const Consensus none(*member.optimizer); }),
                HasSubstr("no worker's parameters"));
  });
}

// Nothing that is not finite is mixed, whoever begins again with it.
TEST_P(ConsensusOf, AWorkerWithNaNsSaysSoAndSpoilsNoOther) {
  if (!mixes()) GTEST_SKIP() << "no exchanges of parameters";
  for (const Setting& setting : settings_of(info())) {
    if (setting.options.hierarchy != "none") continue;  // its gradients are those of its node
    for (const int bad : {0, 2}) {
      SCOPED_TRACE(testing::Message() << setting.name << ", worker " << bad);
      std::vector<LogLines> said(kMembers);
      virtual_flock(kMembers, [&](int i, World& world, VirtualTime& time) {
        world.log = said[static_cast<std::size_t>(i)].log();
        Member member(setting, world);
        member.set(i == bad ? NAN : 1);
        member.optimizer->begin_again();
        for (int t = 0; t < 20; ++t) {
          time.sleep(std::chrono::milliseconds(10));
          member.train(i, t, 1, 0.1);
        }
        if (i != bad) {
          EXPECT_TRUE(member.p.isfinite().all().item<bool>()) << "worker " << i;
        }
        nobody_leaves_yet(*member.optimizer);
      });
      for (int i = 0; i < kMembers; ++i) {
        const bool says = said[static_cast<std::size_t>(i)].text().find("not finite") != std::string::npos;
        EXPECT_EQ(says, i == bad) << "worker " << i;
      }
    }
  }
}

STARLING_EVERY_SCHEME(ConsensusOf);

// It is in the next average again, once it has kept that of the others.
TEST(Consensus, AWorkerWhoseValuesHaveJumpedIsLeftOut) {
  constexpr int kRing = 4;  // workers
  constexpr double kWell = 1e4;
  for (const char* scheme : {"cta", "a2cid2"}) {
    SCOPED_TRACE(scheme);
    std::atomic<int> ready = 0;  // guards
    std::atomic<bool> is_apart = false;
    flock(kRing, [&](int i, World& world) {
      LogLines said;
      world.log = [&, log = said.log()](Level level, const std::string& line) {
        log(level, line);
        ready += line.starts_with("jump_guard:") ? 1 : 0;
        if (line.find("has jumped away") != std::string::npos) is_apart = true;
      };
      Setting guarded{"", {.topology = "ring", .scheme = scheme}};
      guarded.options.jump_guard = 1000;
      Member member(guarded, world);
      const auto is_well = [&] { return (member.p.abs() < kWell).all().item<bool>(); };
      int t = 0;
      while (ready < kRing) member.train(i, t++, 1, 1);
      if (i == 2) member.set(1e6);
      while (!is_apart) member.train(i, t++, 1, 1);
      {
        const Consensus average(*member.optimizer);
        EXPECT_EQ(average.workers(), kRing - 1);
        EXPECT_LT(average.distance(), kWell);
        EXPECT_TRUE(is_well());
      }
      EXPECT_EQ(is_well(), i != 2);
      EXPECT_EQ(said.text().find("it gets the average of the others") != std::string::npos, i == 2);
      Consensus(*member.optimizer).keep();
      EXPECT_TRUE(is_well());
      for (const int end = t + 3; t < end; ++t) member.train(i, t, 1, 1);
      EXPECT_EQ(Consensus(*member.optimizer).workers(), kRing);
      EXPECT_TRUE(is_well());
      nobody_leaves_yet(*member.optimizer);
    });
  }
}

// The blocks in flight are waited for, since they show it.
TEST(Consensus, ValuesThatJumpedInTheLastStepAreLeftOut) {
  constexpr int kRing = 4;  // workers
  constexpr double kWell = 1e4;
  flock(kRing, [&](int i, World& world) {
    Setting guarded{"", {.topology = "ring", .scheme = {"cta"}}};
    guarded.options.jump_guard = 1000;
    Member member(guarded, world);
    member.train(i, 0, 40, 1);
    EXPECT_TRUE(member.optimizer->counts(/*waits=*/true));
    if (i == 2) member.set(1e6);
    member.train(i, 40, 1, 1);
    {
      const Consensus average(*member.optimizer);
      EXPECT_EQ(average.workers(), kRing - 1);
      EXPECT_LT(member.p.abs().max().item<double>(), kWell);
    }
    EXPECT_EQ(member.optimizer->counts(), i != 2);
    Consensus(*member.optimizer).keep();
    EXPECT_TRUE(member.optimizer->counts(/*waits=*/true));
    member.train(i, 41, 3, 1);
    EXPECT_EQ(Consensus(*member.optimizer).workers(), kRing);
    nobody_leaves_yet(*member.optimizer);
  });
}

}  // namespace
}  // namespace starling
