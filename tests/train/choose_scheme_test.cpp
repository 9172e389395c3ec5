#include "starling/train/choose_scheme.h"

#include <algorithm>
#include <functional>
#include <string>

#include <ATen/ops/ones.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "starling/optim/options.h"
#include "starling/optim/rule_step.h"
#include "starling/optim/schemes/table.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using testing::HasSubstr;

const SchemeInfo& info_of(const Suggestion& one) { return scheme_of(one.options); }

const Suggestion* of_scheme(const Suggestions& all, const std::string& name) {
  const auto found = std::ranges::find(all.best, name, [](const auto& s) { return s.options.scheme.name; });
  return found == all.best.end() ? nullptr : &*found;
}

// The situations of a grid.
void each_situation(const std::function<void(const Situation&, const std::string& text)>& f) {
  for (const auto& [workers, per_node] : {std::pair{2, 1}, {5, 1}, {8, 1}, {8, 4}}) {
    for (const double link : {0.0, 1.0, 30.0}) {
      for (const char* const rule : {"", "sgd", "other"}) {
        for (int flags = 0; flags < 16; flags += rule[0] == 0 ? 1 : 5) {
          const bool straggler = (flags & 1) != 0, failures = (flags & 2) != 0, directed = (flags & 4) != 0;
          f({.workers = workers,
             .workers_per_node = per_node,
             .link_over_compute = link,
             .straggler = straggler ? 2.0 : 1.0,
             .skew = failures ? Skew::strong : Skew::none,
             .failures = failures,
             .directed = directed,
             .gpu = flags >= 8,
             .rule = rule},
            fmt::format("{} workers, {} on a node, link {}, rule {}, flags {}", workers, per_node, link, rule,
                        flags));
        }
      }
    }
  }
}

TEST(Suggest, AcceptedCombinationsAloneAndEachSchemeOnce) {
  each_situation([](const Situation& in, const std::string& text) {
    const Suggestions all = suggest(in);
    std::vector<std::string> names;
    for (const Suggestion& one : all.best) {
      names.push_back(one.options.scheme.name);
      EXPECT_EQ(refusal<UsageError>(
                    [&] { check_options(one.options, in.workers, in.workers_per_node, in.rule == "other"); }),
                "accepted")
          << names.back() << ": " << text;
      EXPECT_TRUE(!in.gpu || !info_of(one).traits.on_host) << names.back() << ": " << text;
      EXPECT_TRUE(!in.directed || info_of(one).traits.edges == EdgeKind::directed)
          << names.back() << ": " << text;
      EXPECT_TRUE(!in.failures || info_of(one).traits.path != Path::gradients)
          << names.back() << ": " << text;
      EXPECT_GE(one.step, 0.99) << names.back() << ": " << text;
      EXPECT_FALSE(one.reasons.empty()) << names.back() << ": " << text;
    }
    for (const LeftOut& one : all.left_out) {
      names.push_back(one.scheme);
      EXPECT_NE(one.why, "") << one.scheme << ": " << text;
    }
    std::ranges::sort(names);
    std::vector<std::string> known = scheme_names();
    std::ranges::sort(known);
    EXPECT_EQ(names, known) << text;
    EXPECT_TRUE(in.directed || !all.best.empty()) << text;
  });
}

TEST(Suggest, TheDefaultOnAFastLinkAndNarrowerExchangesOnASlowOne) {
  const std::string standard(schemes().front()->name);
  const auto first = [](double link) { return suggest({.link_over_compute = link}).best.front(); };
  const Suggestion fast = first(0.1), slow = first(3), slower = first(100);
  EXPECT_EQ(fast.options.scheme.name, standard);
  EXPECT_EQ(fast.options.topology, "base-2");
  EXPECT_EQ(fast.options.wire, Wire::fp32);
  EXPECT_NEAR(fast.step, 1, 0.01);
  EXPECT_EQ(slow.options.scheme.name, standard);
  EXPECT_EQ(slow.options.wire, Wire::int8);
  EXPECT_NEAR(slow.step, 1, 0.01);
  EXPECT_GE(std::max(slower.options.every, slower.options.mean_every), 16);
  EXPECT_LT(slower.step, 1.2);
}

// docs/studies/slow-links.md has these schemes, and no others.
TEST(Suggest, ItCallsMeasuredWhatWasMeasured) {
  const Suggestions all = suggest({.link_over_compute = 100});
  for (const Suggestion& one : all.best) {
    const std::string& name = one.options.scheme.name;
    const bool cited = std::ranges::count(one.measured, kSlowLinkStudy.where, &Evidence::where) > 0;
    const bool there = name == "cta" || name == "local" || name == "gasloc" || name == "streaming-diloco";
    EXPECT_EQ(cited, there) << name;
  }
  // A fast link needs none of it.
  EXPECT_THAT(of_scheme(suggest({}), "cta")->measured,
              testing::Each(testing::Field(&Evidence::where, testing::Ne(kSlowLinkStudy.where))));
  // Those with messages of their own are there, behind those that were measured.
  for (const char* const name : {"power-gossip", "sparse-loco", "demo"}) {
    const Suggestion* const one = of_scheme(all, name);
    ASSERT_NE(one, nullptr) << name;
    EXPECT_THAT(one->measured, testing::IsEmpty()) << name;
    EXPECT_THAT(one->reasons, testing::Contains("Its bytes are those of matrices of 1024 x 1024.")) << name;
    EXPECT_LT(of_scheme(all, "cta"), one) << name;
  }
}

TEST(Suggest, WhatBearsStrongSkewUnlessItTakesTooLong) {
  const Suggestions near = suggest({.link_over_compute = 0.5, .skew = Skew::strong});
  EXPECT_TRUE(info_of(near.best.front()).traits.exact);
  EXPECT_THAT(near.best.front().reasons, testing::Contains(HasSubstr("reaches the optimum")));
  EXPECT_THAT(near.best.front().to_measure, testing::Not(testing::IsEmpty()));
  const Suggestions far = suggest({.link_over_compute = 100, .skew = Skew::strong});
  EXPECT_FALSE(info_of(far.best.front()).traits.exact);
  EXPECT_LT(far.best.front().step, 2);
}

TEST(Suggest, SchemesThatWaitForNobodyBesideAStraggler) {
  const Suggestions all = suggest({.straggler = 3});
  EXPECT_EQ(info_of(all.best.front()).traits.path, Path::pairs);
  EXPECT_NEAR(all.best.front().step, 10.0 / 8, 0.02);
  EXPECT_NEAR(of_scheme(all, std::string(schemes().front()->name))->step, 3, 0.05);
}

TEST(Suggest, NodesThatExchangeAsOne) {
  const Suggestion one = suggest({.workers = 8, .workers_per_node = 4, .link_over_compute = 1}).best.front();
  EXPECT_EQ(one.options.hierarchy, "node");
  EXPECT_NEAR(one.step, 1, 0.01);
  EXPECT_EQ(suggest({.workers = 8, .workers_per_node = 4, .failures = true}).best.front().options.hierarchy,
            "none");
}

// A wire block of the worker and one of a neighbour: docs/results/measurements.md has 7.6 bytes for
// fp32 and 2.2 for int8.
TEST(Suggest, NoMoreMemoryThanAllowed) {
  EXPECT_NEAR(suggest({}).best.front().memory, 8, 1e-9);
  for (const double bytes : {0.0, 2.0, 4.0}) {
    const Suggestions all = suggest({.memory = bytes});
    for (const Suggestion& one : all.best) EXPECT_LE(one.memory, bytes) << one.options.scheme.name;
  }
  EXPECT_EQ(suggest({.memory = 2}).best.front().options.wire, Wire::int8);
}

// The reason is the memory of the least combination, not a topology that no one has asked for.
TEST(Suggest, WhatIsLeftOutForItsMemorySaysTheLeast) {
  const Suggestions all = suggest({.memory = 0.5});
  for (const auto& [name, least] : {std::pair{"cta", "1"}, {"atc", "1"}, {"exact-diffusion", "7"}}) {
    const auto found = std::ranges::find(all.left_out, name, &LeftOut::scheme);
    ASSERT_NE(found, all.left_out.end()) << name;
    EXPECT_EQ(found->why, fmt::format("it takes at least {} bytes per parameter", least)) << name;
  }
}

TEST(Suggest, SchemesThatKeepToTheLinksThatTheNetworkAllows) {
  const Suggestions all = suggest({.topology = "ring"});
  for (const Suggestion& one : all.best) {
    EXPECT_TRUE(info_of(one).uses_topology()) << one.options.scheme.name;
    EXPECT_EQ(one.options.topology, "ring") << one.options.scheme.name;
  }
  for (const std::string name : {"all-reduce", "local", "ceca-2p"}) {
    const auto found = std::ranges::find(all.left_out, name, &LeftOut::scheme);
    ASSERT_NE(found, all.left_out.end()) << name;
    EXPECT_EQ(found->why, "its workers do not keep to the links of a topology") << name;
  }
}

TEST(Suggest, OneLineForASituationThatIsNotAllowed) {
  const auto said = [](const Situation& in) { return refusal<UsageError>([&] { suggest(in); }); };
  EXPECT_EQ(said({.workers = 1}),
            "schemes --for: workers = 1 is not allowed: it must be at least 2 and at most 128");
  EXPECT_EQ(said({.workers = 8, .workers_per_node = 3}),
            "schemes --for: 8 workers are no whole number of nodes with 3 workers each");
  EXPECT_THAT(said({.link_over_compute = -1}), HasSubstr("link-over-compute = -1 is not allowed"));
  EXPECT_THAT(said({.straggler = 0.5}), HasSubstr("straggler = 0.5 is not allowed: it must be at least 1"));
  EXPECT_THAT(said({.memory = -1}), HasSubstr("memory = -1 is not allowed"));
  EXPECT_THAT(said({.rule = "adamm"}), HasSubstr("rule \"adamm\" is unknown, did you mean adam?: sgd, adam"));
  EXPECT_THAT(said({.topology = "no-such"}), HasSubstr("no-such"));
}

// Bytes that a saved state shows. Schemes may keep more that is not saved.
TEST(SchemesTable, SaysHowManyVectorsASchemeKeeps) {
  for (const SchemeInfo* const info : schemes()) {
    const auto saved_with = [&](int every) {
      const at::Tensor x = at::ones({4}).requires_grad_();
      const Options options{.topology = "ring", .scheme = std::string(info->name), .every = every};
      Optimizer optimizer({x}, SGD{}, options, World::alone());
      return std::ranges::count_if(optimizer.state().of_scheme,
                                   [](const SchemeState& one) { return !one.numbers; });
    };
    const auto saved = saved_with(1);
    if (info->traits.local_steps) {
      EXPECT_EQ(saved_with(2) - saved, info->traits.kept_if_local) << info->name;
    }
    EXPECT_LE(saved, info->traits.kept) << info->name;
    if (info->traits.path == Path::ahead || info->traits.path == Path::inside) {
      EXPECT_EQ(saved > 0, info->traits.kept > 0) << info->name;
    }
  }
}

}  // namespace
}  // namespace starling
