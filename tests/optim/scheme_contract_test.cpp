// The properties that every scheme of the table keeps, whatever its algorithm. The test of a scheme
// has its equation.
#include <cmath>
#include <string>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "starling/core/error.h"
#include "starling/optim/optimizer.h"
#include "starling/optim/options.h"
#include "starling/optim/schemes.h"
#include "starling/optim/schemes/table.h"
#include "tests/optim/flock.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using at::Tensor;
using testing::HasSubstr;

constexpr int kMany = 4;

class EveryScheme : public testing::TestWithParam<const SchemeInfo*> {
 protected:
  const SchemeInfo& info() const { return *GetParam(); }
  bool in_pairs() const { return info().traits.path == Path::pairs; }
  bool mixes() const { return info().traits.path != Path::gradients; }
  // On a topology that it takes.
  Options options() const {
    const bool directed = info().traits.edges == EdgeKind::directed;
    return {.topology = directed ? "n-peer-exponential-1" : "ring", .scheme = std::string(info().name)};
  }
  std::string refused(const Options& options) const {
    return refusal<UsageError>([&] { check_options(options, kMany, 1, false); });
  }
  // p has a zero gradient in every step, q none.
  void expect_the_mean_is_kept(at::ScalarType type) const;
};

// Until all have done as much: others still average with this worker.
void wait_for_all(Optimizer& optimizer) {
  std::int64_t nothing = 0;
  optimizer.wait_for_all();
  optimizer.maximum({&nothing, 1});
}

void EveryScheme::expect_the_mean_is_kept(at::ScalarType type) const {
  flock(kMany, [&](int i, World& world) {
    Tensor p = at::full({5000}, 0.0, type), q = at::full({300}, 0.0, type);
    p.set_requires_grad(true), q.set_requires_grad(true);
    Optimizer optimizer({p, q}, SGD{.lr = 0.1}, options(), world);
    {
      const c10::AutoGradMode no_gradient(false);
      p.add_(1.0 + i), q.sub_(2.0 * i);
    }
    const auto mean = [&] {
      const Consensus average(optimizer);
      return at::cat({p.detach().to(at::kFloat), q.detach().to(at::kFloat)}).clone();
    };
    const Tensor before = mean();
    const double distance = optimizer.consensus_distance();
    for (int t = 0; t < 20; ++t) {
      p.mutable_grad() = at::zeros_like(p);
      optimizer.step();
    }
    wait_for_all(optimizer);
    // A scheme that tracks gradients keeps their sum; of x the one end takes the mean of both.
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

TEST_P(EveryScheme, KeepsTheMeanOfAllParametersUsedOrNot) { expect_the_mean_is_kept(at::kFloat); }

TEST_P(EveryScheme, KeepsTheMeanOfMasters) { expect_the_mean_is_kept(at::kBFloat16); }

// Gradients depend on the step, the worker and x.
void train(std::vector<Tensor> parameters, Optimizer& optimizer, int i, int from, int to) {
  for (int t = from; t < to; ++t) {
    for (Tensor& p : parameters) p.mutable_grad() = p.detach() - centre(i, t);
    optimizer.step();
  }
}

TEST_P(EveryScheme, GoesOnFromWhatWasSaved) {
  flock(kMany, [&](int i, World& world) {
    const Tensor p = parameter({5000}), again = parameter({5000});
    const AccumAdamW rule{.lr = 0.01, .window = 3};
    Optimizer optimizer({p}, rule, options(), world);
    train({p}, optimizer, i, 0, 10);
    wait_for_all(optimizer);
    OptimizerState saved = optimizer.state();
    for (auto& [name, tensor] : saved.tensors) tensor = tensor.clone();
    Optimizer other({again}, rule, options(), world);
    train({again}, other, i, 0, 3);  // something else to forget
    wait_for_all(other);
    other.set_state(saved);
    const OptimizerState taken = other.state();
    for (const auto& [name, tensor] : saved.tensors)
      EXPECT_TRUE(at::equal(tensor, taken.tensors.at(name))) << name;
    if (in_pairs()) return;  // real clocks do not repeat
    train({p}, optimizer, i, 10, 15);
    train({again}, other, i, 10, 15);
    EXPECT_TRUE(at::equal(p, again)) << "worker " << i;
    wait_for_all(optimizer);
    wait_for_all(other);
  });
}

TEST_P(EveryScheme, NamesItsStateAndHowItBegins) {
  flock(kMany, [&](int i, World& world) {
    const Tensor p = parameter({100});
    Optimizer optimizer({p}, SGD{}, options(), world);
    train({p}, optimizer, i, 0, 2);
    wait_for_all(optimizer);
    const OptimizerState state = optimizer.state();
    std::size_t known = 4;  // model.0.0, options.0, steps, rng
    for (const SchemeState& field : state.of_scheme) {
      const std::string name = field.numbers ? field.name : field.name + ".0.0";
      EXPECT_TRUE(state.tensors.contains(name)) << name;
      ++known;
    }
    EXPECT_EQ(state.tensors.size(), known);
  });
}

TEST_P(EveryScheme, TakesAParameterGroupInMidRun) {
  flock(kMany, [&](int i, World& world) {
    const Tensor p = parameter({5000}), late = parameter({70'000}, i == 0 ? 3.0 : 0.0);
    Optimizer optimizer({p}, AdamW{.lr = 0.01}, options(), world);
    train({p}, optimizer, i, 0, 5);
    optimizer.add_param_group(torch::optim::OptimizerParamGroup({late}));
    train({p, late}, optimizer, i, 5, 10);
    wait_for_all(optimizer);
    const Consensus average(optimizer);
    EXPECT_EQ(average.workers(), kMany);
    EXPECT_LT(average.distance(), 1);
    for (const Tensor& x : {p, late}) EXPECT_TRUE(at::isfinite(x).all().item<bool>());
    EXPECT_GT(late.mean().item<double>(), 2);  // rank 0's
  });
}

TEST_P(EveryScheme, AloneItIsTheLocalRuleAndClips) {
  const auto trained = [](const Options& options) {
    const World world = World::alone();
    const Tensor p = parameter({300}, 0.5);
    Optimizer optimizer({p}, AccumAdamW{.lr = 0.01, .window = 2}, options, world);
    train({p}, optimizer, 0, 0, 7);
    optimizer.state();  // what gossip has goes to the parameters
    return p.detach().clone();
  };
  Options one = options(), other;
  EXPECT_TRUE(at::allclose(trained(one), trained(other), 1e-6, 1e-7));
  one.clip = other.clip = 0.1;
  EXPECT_TRUE(at::allclose(trained(one), trained(other), 1e-6, 1e-7));
}

TEST_P(EveryScheme, RefusesWhatItDoesNotTakeAndSaysWhy) {
  const SchemeTraits& traits = info().traits;
  EXPECT_EQ(refused(options()), "accepted");
  for (const Wire wire : {Wire::fp32, Wire::bf16, Wire::fp16, Wire::int8, Wire::int4}) {
    Options other = options();
    other.wire = wire;
    const auto why = std::ranges::find(traits.refused_wires, wire, &RefusedWire::wire);
    EXPECT_THAT(refused(other),
                HasSubstr(why == traits.refused_wires.end() ? "accepted" : std::string(why->reason)));
  }
  Options fewer = options();
  fewer.one_in = 2;
  EXPECT_THAT(refused(fewer),
              HasSubstr(traits.all_values.empty() ? "accepted" : std::string(traits.all_values)));
  Options in_nodes = options();
  in_nodes.hierarchy = "node";
  in_nodes.workers_per_node = 2;
  EXPECT_THAT(refused(in_nodes), HasSubstr(info().make_in_nodes != nullptr ? "accepted" : "needs scheme"));
  EXPECT_THAT(refusal<UsageError>([&] { check_options(options(), kMany, 1, /*around=*/true); }),
              HasSubstr(traits.own_rule.empty() ? "accepted" : std::string(traits.own_rule)));
  Options patient = options();
  patient.max_wait = std::chrono::milliseconds(1);
  EXPECT_THAT(refused(patient), HasSubstr(in_pairs() ? "waits for nobody" : "accepted"));
}

// Values of an option that its range leaves out.
std::vector<SchemeValue> not_allowed(const SchemeOption& option) {
  if (!option.choices.empty()) return {"neither", 1.5};
  std::vector<SchemeValue> all{"text", std::nan("")};
  if (option.range.least > -1e6) all.emplace_back(option.range.least - 1);
  if (option.range.most < 1e12) all.emplace_back(option.range.most + 1);
  return all;
}

TEST_P(EveryScheme, ChecksItsOptions) {
  const std::string name(info().name);
  const SchemeSettings defaults{SchemeChoice(name)};
  for (const SchemeOption& option : info().options) {
    const std::string key(option.name);
    EXPECT_FALSE(option.meaning.empty()) << key;
    if (const auto standard = default_of(option); standard && std::holds_alternative<double>(*standard)) {
      EXPECT_EQ(defaults.number(key), std::get<double>(*standard));
    }
    for (const SchemeValue& value : not_allowed(option)) {
      EXPECT_THAT(refusal<UsageError>([&] { SchemeSettings({name, {{key, value}}}); }),
                  testing::AllOf(HasSubstr(key), HasSubstr("is not allowed")))
          << value_text(value);
    }
    EXPECT_THAT(refusal<UsageError>([&] { SchemeSettings({name, {{key + "x", 1}}}); }),
                HasSubstr("did you mean " + key + "?"));
  }
  for (const SharedOption& other : scheme_options()) {
    if (std::ranges::count(other.schemes, name) > 0) continue;
    const std::string key(other.option->name);
    const auto standard = default_of(*other.option);
    if (standard) SchemeSettings({name, {{key, *standard}}});  // says nothing
    SchemeValue value = other.option->range.most;              // which is no default
    if (standard && std::holds_alternative<std::int64_t>(*standard))
      value = static_cast<std::int64_t>(other.option->range.most);
    if (!other.option->choices.empty()) value = std::string(other.option->choices.back());
    EXPECT_THAT(refusal<UsageError>([&] { SchemeSettings({name, {{key, value}}}); }),
                testing::AllOf(HasSubstr("is for scheme"), HasSubstr("not \"" + name + "\"")));
  }
}

INSTANTIATE_TEST_SUITE_P(Schemes, EveryScheme, testing::ValuesIn(schemes().begin(), schemes().end()),
                         [](const auto& one) {
                           std::string name(one.param->name);
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(SchemesTable, HasEachNameOnceAndTellsTheNearest) {
  const std::vector<std::string> names = scheme_names();
  for (const std::string& name : names) EXPECT_EQ(std::ranges::count(names, name), 1) << name;
  EXPECT_EQ(SchemeChoice().name, names.front());
  EXPECT_THAT(refusal<UsageError>([] { scheme_info("chocco"); }), HasSubstr("did you mean choco?"));
}

TEST(SchemesTable, IsThereAsTypesThatTheCompilerChecks) {
  const Options options{.topology = "ring", .scheme = scheme::Choco{.gamma = 0.5}};
  EXPECT_EQ(options.scheme.name, "choco");
  EXPECT_EQ(SchemeSettings(options.scheme).number("gamma"), 0.5);
  const SchemeSettings given(scheme::A2cid2{.rate = 2, .clock = "fixed", .eta = 0.25});
  EXPECT_EQ(given.number("rate"), 2);
  EXPECT_EQ(given.text("clock"), "fixed");
  EXPECT_EQ(given.automatic("eta"), 0.25);
  EXPECT_EQ(given.automatic("alpha_tilde"), std::nullopt);
  EXPECT_EQ(SchemeSettings(scheme::Swarm{.local_steps = 4}).integer("local_steps"), 4);
}

TEST(SchemesTable, OptionsOfOneNameAreAlike) {
  for (const SharedOption& shared : scheme_options()) {
    for (const std::string& scheme : shared.schemes) {
      const SchemeInfo& info = scheme_info(scheme);
      const auto own = std::ranges::find(info.options, shared.option->name, &SchemeOption::name);
      EXPECT_EQ(default_of(*own), default_of(*shared.option)) << shared.option->name;
      EXPECT_EQ(allowed_text(*own), allowed_text(*shared.option)) << shared.option->name;
    }
  }
}

}  // namespace
}  // namespace starling
