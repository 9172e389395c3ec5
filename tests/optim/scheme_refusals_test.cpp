// Every scheme refuses what it does not take, in one line with the reason. Its options are checked
// by the table.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starling/optim/schemes.h"
#include "tests/optim/every_scheme.h"

namespace starling {
namespace {

using at::Tensor;
using testing::HasSubstr;

class SchemeRefusals : public EveryScheme {
 protected:
  std::string name() const { return std::string(info().name); }
  std::string refused(const Options& options, bool around = false) const {
    return refusal<UsageError>([&] { check_options(options, kMany, 1, around); });
  }
};

// The names of the schemes that satisfy the predicate, as messages list them.
std::string schemes_that(const std::function<bool(const SchemeInfo&)>& holds) {
  std::vector<std::string> names;
  for (const SchemeInfo* const info : schemes()) {
    if (holds(*info)) names.emplace_back(info->name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

TEST_P(SchemeRefusals, NameWhatItDoesNotTakeAndWhy) {
  const SchemeTraits& traits = info().traits;
  EXPECT_EQ(refused(options()), "accepted");
  for (const Wire wire : {Wire::fp32, Wire::bf16, Wire::fp16, Wire::int8, Wire::int4}) {
    Options other = options();
    other.wire = wire;
    const auto why = std::ranges::find(traits.refused_wires, wire, &RefusedWire::wire);
    EXPECT_EQ(refused(other),
              why == traits.refused_wires.end()
                  ? "accepted"
                  : fmt::format("scheme \"{}\" needs wire {}, not \"{}\": {}", name(),
                                fmt::join(wires_of(info()), ", "), name_of(wire), why->reason));
  }
  for (const int one_in : {0, 2, 1025}) {
    Options fewer = options();
    fewer.one_in = one_in;
    EXPECT_EQ(refused(fewer),
              one_in != 2
                  ? fmt::format("one_in = {} is not allowed: it must be at least 1 and at most 1024", one_in)
              : traits.all_values.empty()
                  ? "accepted"
                  : fmt::format("scheme \"{}\" needs one_in = 1, not 2: {}", name(), traits.all_values));
  }
  Options in_nodes = options();
  in_nodes.hierarchy = "node", in_nodes.workers_per_node = 2;
  EXPECT_EQ(
      refused(in_nodes),
      info().make_in_nodes != nullptr
          ? "accepted"
          : fmt::format("hierarchy \"node\" needs scheme \"{}\", not \"{}\"",
                        schemes_that([](const auto& one) { return one.make_in_nodes != nullptr; }), name()));
  EXPECT_EQ(refused(options(), /*around=*/true),
            traits.own_rule.empty()
                ? "accepted"
                : fmt::format("scheme \"{}\" needs one of Starling's rules, not another optimizer: {}",
                              name(), traits.own_rule));
  Options patient = options();
  patient.max_wait = std::chrono::milliseconds(1);
  EXPECT_EQ(
      refused(patient),
      in_pairs() || traits.edges == EdgeKind::none
          ? fmt::format("max_wait is not for scheme \"{}\", which waits {}: leave it out", name(),
                        traits.path == Path::gradients ? "for all workers in each step" : "for no neighbour")
          : "accepted");
  for (const double factor : {-1.0, 1.5, 20.0}) {
    Options guarded = options();
    guarded.jump_guard = factor;
    const auto takes = [](const SchemeInfo& one) {
      return one.traits.path != Path::gradients && one.traits.edges != EdgeKind::none &&
             one.traits.contents.chooser == Chooser::mask;
    };
    EXPECT_EQ(
        refused(guarded),
        factor < 0   ? "jump_guard = -1 is not allowed: it must be at least 0 and at most 1000000"
        : factor < 2 ? "jump_guard = 1.5 is not allowed: it must be 0, or at least 2"
        : takes(info())
            ? "accepted"
            : fmt::format(
                  "jump_guard = 20 needs scheme \"{}\", not \"{}\", whose workers exchange no parameters",
                  schemes_that(takes), name()));
  }
  Options scaled = options(), skips = options();
  scaled.loss_scaling = LossScaling{}, skips.skip_not_finite = true;
  const std::string takes_no = fmt::format("scheme \"{}\" takes no ", name());
  EXPECT_EQ(refused(scaled), may_skip() ? "accepted"
                                        : takes_no +
                                              "loss_scaling: gradients of all workers are added up, "
                                              "and each has a scale of its own");
  EXPECT_EQ(refused(skips), may_skip() ? "accepted"
                                       : takes_no +
                                             "skip_not_finite: a gradient that is not finite is left "
                                             "out of what is tracked anyway");
  Optimizer optimizer({parameter({2})}, SGD{}, options(), World::alone());
  EXPECT_EQ(refusal([&] { optimizer.scale_gradients(0.5F); }),
            may_skip() ? "accepted"
                       : fmt::format("scale_gradients is not for scheme \"{}\": gradients of all workers are "
                                     "added up, and each would have a scale of its own",
                                     name()));
}

// Autograd makes a sparse one if an embedding asks for it. The others are set by hand.
TEST_P(SchemeRefusals, NameGradientsAndParametersThatDoNotFit) {
  const auto said = [&](const Tensor& p, const std::function<void(Tensor)>& change) {
    Optimizer optimizer({p}, SGD{}, options(), World::alone());
    change(p);
    return refusal<UsageError>([&] { optimizer.step(); });
  };
  const auto gradient = [](const Tensor& g) { return [=](const Tensor& p) { p.mutable_grad() = g; }; };
  const std::string wide = " for a parameter Float [4, 2]: it must be dense float32 of equal sizes";
  for (const auto& [text, g] : {std::pair{"sparse Float [4, 2]", at::ones({4, 2}).to_sparse(1)},
                                {"Double [4, 2]", at::ones({4, 2}, at::kDouble)},
                                {"Float [2, 4]", at::ones({2, 4})}}) {
    EXPECT_EQ(said(parameter({4, 2}), gradient(g)), "a gradient is " + std::string(text) + wide);
  }
  EXPECT_EQ(said(parameter({2}, 1, at::kBFloat16), gradient(at::ones({2}))),
            "a gradient is Float [2] for a parameter BFloat16 [2]: it must be dense bfloat16 of equal sizes");
  EXPECT_EQ(
      said(parameter({2}, 1, at::kBFloat16), [](const Tensor& p) { p.set_data(at::ones({2})); }),
      "a parameter [2] was bfloat16 when the optimizer was made and is Float now: it must stay bfloat16");
  torch::optim::SGD inner({parameter({2}, 1, at::kBFloat16)}, 0.1);
  EXPECT_THAT(
      refusal<UsageError>([&] { Optimizer optimizer(inner, options(), World::alone()); }),
      HasSubstr(
          info().traits.own_rule.empty()
              ? "parameter 0 of group 0 is BFloat16: around another optimizer it must be float32, since "
                "only Starling's rules step the fp32 master of one in bfloat16 or float16"
              : "needs one of Starling's rules"));
}

// Values of an option that its range leaves out.
std::vector<SchemeValue> not_allowed(const SchemeOption& option) {
  if (!option.choices.empty()) return {"neither", 1.5};
  std::vector<SchemeValue> all{"text", std::nan("")};
  if (option.range.least > -1e6) all.emplace_back(option.range.least - 1);
  if (option.range.most < 1e12) all.emplace_back(option.range.most + 1);
  return all;
}

TEST_P(SchemeRefusals, NameOptionsOutOfRangeAndThoseOfOtherSchemes) {
  const SchemeSettings defaults{SchemeChoice(name())};
  for (const SchemeOption& option : info().options) {
    const std::string key(option.name);
    EXPECT_FALSE(option.meaning.empty()) << key;
    if (const auto standard = default_of(option); standard && std::holds_alternative<double>(*standard)) {
      EXPECT_EQ(defaults.number(key), std::get<double>(*standard));
    }
    for (const SchemeValue& value : not_allowed(option)) {
      EXPECT_THAT(refusal<UsageError>([&] { SchemeSettings({name(), {{key, value}}}); }),
                  testing::AllOf(HasSubstr(key), HasSubstr("is not allowed")))
          << value_text(value);
    }
    EXPECT_THAT(refusal<UsageError>([&] { SchemeSettings({name(), {{key + "x", 1}}}); }),
                HasSubstr("did you mean " + key + "?"));
  }
  for (const SharedOption& other : scheme_options()) {
    if (std::ranges::count(other.schemes, name()) > 0) continue;
    const std::string key(other.option->name);
    const auto standard = default_of(*other.option);
    if (standard) SchemeSettings({name(), {{key, *standard}}});  // no complaint
    const Range& range = other.option->range;
    SchemeValue value = range.most_open ? range.least : range.most;  // which is no default
    if (standard && std::holds_alternative<std::int64_t>(*standard))
      value = static_cast<std::int64_t>(range.most);
    if (!other.option->choices.empty()) value = std::string(other.option->choices.back());
    EXPECT_THAT(refusal<UsageError>([&] { SchemeSettings({name(), {{key, value}}}); }),
                testing::AllOf(HasSubstr("is for scheme"), HasSubstr("not \"" + name() + "\"")));
  }
}

STARLING_EVERY_SCHEME(SchemeRefusals);

// ---------------------------------------------------------------- the words of single refusals

struct Refusal {
  Options options;
  std::string message;  // all of it, or a part if it ends with "..."
  int workers = 1;
  bool around = false;
};

TEST(SchemesTable, RefusesInTheseWords) {
  const TopologyFile lopsided("workers = 2\n[[rounds]]\nweights = \"push-sum\"\nedges = [[0, 1]]\n");
  const TopologyFile turn("workers = 2\n[[rounds]]\nedges = [[0, 1, 1]]\n");
  const std::string lasting =
      "scheme \"choco\" needs a topology of one round that is symmetric, such as ring, torus or complete: ";
  const std::string rates =
      " is for schemes a2cid2, ad-psgd, ad-psgd-bipartite, swarm, async-push-sum, "
      "async-push-pull, not \"cta\": use ";
  const std::vector<Refusal> all{
      {{.scheme = "all-reduce", .wire = Wire::bf16},
       "scheme \"all-reduce\" needs wire fp32, not \"bf16\": it sends gradients, not parameters"},
      {{.scheme = "all-reduce", .one_in = 2},
       "scheme \"all-reduce\" needs one_in = 1, not 2: it sends gradients, not parameters"},
      {{.mean_every = -1}, "mean_every = -1 is not allowed: it must be at least 0 and at most 1073741824"},
      {{.scheme = "all-reduce", .mean_every = 5},
       "scheme \"all-reduce\" takes no mean_every: its workers are equal after each step"},
      {{.scheme = "swarm", .mean_every = 5},
       "scheme \"swarm\" takes no mean_every: each worker makes steps of its own, so there is no step at "
       "which all could take their mean"},
      {{.every = 0}, "every = 0 is not allowed: it must be at least 1 and at most 1048576"},
      {{.scheme = "d2", .every = 3},
       "every = 3 needs scheme \"cta, atc, dsgd-ac, gasloc, streaming-diloco, sparse-loco, choco, "
       "power-gossip\", not \"d2\""},
      {{.every = 4, .mean_every = 10},
       "mean_every = 10 is no multiple of every = 4: a mean follows an exchange"},
      {{.scheme = "atc", .outer = "adam"}, "outer \"adam\" is unknown: none, sgd or nesterov"},
      {{.outer = "sgd"}, "outer \"sgd\" needs mean_every, or scheme \"atc, choco\", not \"cta\""},
      {{.outer_lr = 0}, "outer_lr = 0 is not allowed: it must be above 0"},
      {{.outer_momentum = 1}, "outer_momentum = 1 is not allowed: it must be at least 0 and below 1"},
      {{.outer_lr = 0.5}, "outer_lr needs outer \"sgd\" or \"nesterov\", not \"none\""},
      {{.scheme = "atc", .every = 4, .outer_momentum = 0.5},
       "outer_momentum needs outer \"sgd\" or \"nesterov\", not \"none\""},
      {{.scheme = "sparse-loco", .outer_momentum = 0.5},
       "outer_momentum needs outer \"sgd\" or \"nesterov\", not \"none\""},
      {{.scheme = "sparse-loco", .outer_lr = 0.5}, "accepted"},
      {{.topology = "ring", .scheme = "gasloc", .outer_lr = 0.5, .outer_momentum = 0.5}, "accepted"},
      {{.mean_every = 4, .outer = "sgd", .outer_warmup = -4},
       "outer_warmup = -4 is not allowed: it must be at least 0 and at most 1073741824"},
      {{.mean_every = 4, .outer = "sgd", .outer_warmup = 6},
       "outer_warmup = 6 is no multiple of mean_every = 4: it ends with an outer step"},
      {{.scheme = "atc", .outer = "sgd", .outer_warmup = 6},
       "outer_warmup = 6 needs mean_every: all workers take their mean in each of its steps"},
      {{.mean_every = 4, .outer_warmup = 8},
       "outer_warmup needs outer \"sgd\" or \"nesterov\", not \"none\""},
      {{.topology = "ring", .scheme = "gasloc", .outer_lr_at = "5:1"},
       "outer_lr_at needs outer \"sgd\" or \"nesterov\", not \"none\""},
      {{.mean_every = 4, .outer_momentum_at = "5:0.5"},
       "outer_momentum_at needs outer \"sgd\" or \"nesterov\", not \"none\""},
      {{.mean_every = 4, .outer = "sgd", .outer_lr_at = "5:-1"},
       "outer_lr_at = \"5:-1\": \"5:-1\" is not allowed: wants STEP:VALUE with rising steps, at most two of "
       "the same step, and values at least 0"},
      {{.mean_every = 4, .outer = "sgd", .outer_momentum_at = "5:1"},
       "outer_momentum_at = \"5:1\": \"5:1\" is not allowed: wants STEP:VALUE with rising steps, at most two "
       "of the same step, and values at least 0 and below 1"},
      {{.mean_every = 4, .outer = "sgd", .hierarchy = "node"},
       "outer is not for hierarchy \"node\", whose workers own blocks"},
      {{.max_wait = std::chrono::milliseconds(0)},
       "max_wait = 0 is not allowed: it must be above 0 and at..."},
      {{.max_wait = std::chrono::milliseconds::max()}, "is not allowed: it must be above 0 and at..."},
      {{.every = 2, .hierarchy = "node"},
       "every is not for hierarchy \"node\", whose workers average the gradients of each step"},
      {{.scheme = "ceca-2p", .one_in = 4},
       "scheme \"ceca-2p\" needs one_in = 1, not 4: a value that misses rounds is never averaged exactly"},
      {{.scheme = "ceca-2p"},
       "scheme \"ceca-2p\" needs one of Starling's rules, not another optimizer: its two vectors take the "
       "rule's step together",
       1,
       true},
      {{.scheme = "push-sum", .one_in = 4},
       "scheme \"push-sum\" needs one_in = 1, not 4: a push is of all values of a block"},
      {{.scheme = "push-sum", .wire = Wire::int8},
       "scheme \"push-sum\" needs wire fp32, bf16, fp16, not \"int8\": a push takes away what it adds, by "
       "its value, and modular codes say only how far two values are apart"},
      {{.scheme = {"push-sum", {{"staleness", -1}}}},
       "staleness = -1 is not allowed: at least 0 and at most 1000"},
      {{.scheme = {"cta", {{"staleness", 1}}}},
       "staleness = 1 is for scheme \"push-sum\", not \"cta\": use 0"},
      {{.scheme = "push-sum"},
       "scheme \"push-sum\" needs one of Starling's rules, not another optimizer: its step is divided by a "
       "worker's weight",
       1,
       true},
      {{.topology = lopsided.path()},
       "is for push-sum alone: in round 0 some workers give more than they take...",
       2},
      {{.topology = turn.path(), .scheme = "push-sum"},
       "needs a topology in which every worker keeps a share of itself: in round 0 of...",
       2},
      {{.topology = turn.path(), .scheme = "push-diging"},
       "scheme \"push-diging\" needs a topology in which every worker keeps a share of itself: in round 0...",
       2},
      {{.scheme = {"tracking-adam", {{"floor", 0}}}}, "floor = 0 is not allowed: above 0"},
      {{.scheme = {"tracking-adam", {{"beta2", 1.5}}}},
       "beta2 = 1.5 is not allowed: at least 0 and at most 1"},
      {{.scheme = {"gradient-tracking", {{"beta1", 0.5}}}},
       "beta1 = 0.5 is for schemes tracking-adam, quasi-global-adam, not \"gradient-tracking\": use 0.9"},
      {{.scheme = {"push-diging", {{"staleness", 1}}}},
       "staleness = 1 is for scheme \"push-sum\", not \"push-diging\": use 0"},
      {{.scheme = "push-diging", .wire = Wire::fp16},
       "scheme \"push-diging\" needs wire fp32, bf16, not \"fp16\": of tracked gradients that are small "
       "nothing would move"},
      {{.scheme = "choco"}, lasting + "\"base-2\" has 2 rounds", 4},
      {{.topology = "static-exponential", .scheme = "choco"},
       lasting + "\"static-exponential\" is not symmetric",
       5},
      {{.topology = "ring", .scheme = "choco", .wire = Wire::int8},
       "scheme \"choco\" needs wire fp32, not \"int8\": its values travel as they are, with their indices"},
      {{.topology = "ring", .scheme = {"choco", {{"gamma", 1.5}}}},
       "gamma = 1.5 is not allowed: at least 0 and at most 1"},
      {{.topology = "ring", .scheme = {"choco", {{"gamma", NAN}}}},
       "gamma = nan is not allowed: at least 0 and at most 1"},
      {{.topology = "ring", .scheme = {"choco", {{"trigger", -1.0}}}},
       "trigger = -1 is not allowed: at least 0"},
      {{.scheme = {"cta", {{"gamma", 0.5}}}}, "gamma = 0.5 is for scheme \"choco\", not \"cta\": use 0"},
      {{.topology = "ring", .scheme = "choco"},
       "scheme \"choco\" needs one of Starling's rules, not another optimizer: it sends what changed in a "
       "rule's pass",
       1,
       true},
      {{.topology = "static-exponential", .scheme = "power-gossip"},
       "scheme \"power-gossip\" needs a topology of symmetric rounds, such as base-2, ring or complete: "
       "\"static-exponential\" is not symmetric",
       5},
      {{.topology = "static-exponential", .scheme = "sparse-loco"},
       "scheme \"sparse-loco\" needs a topology of symmetric rounds, such as base-2, ring or complete: "
       "\"static-exponential\" is not symmetric",
       5},
      {{.scheme = {"sparse-loco", {{"sent_values", "3-bit"}}}},
       "sent_values \"3-bit\" is not allowed, did you mean 2-bit?: 2-bit or fp32"},
      {{.scheme = "demo", .mean_every = 4},
       "scheme \"demo\" takes no mean_every: its workers are equal after each step"},
      {{.scheme = "demo", .clip = 1},
       "scheme \"demo\" needs clip = 0, or signs = \"off\": it would scale the signs"},
      {{.scheme = {"demo", {{"signs", "offf"}}}},
       "signs \"offf\" is not allowed, did you mean off?: on or off"},
      {{.scheme = "power-gossip", .one_in = 2},
       "scheme \"power-gossip\" needs one_in = 1, not 2: it sends products of matrices, not values"},
      {{.scheme = "d2"},
       "scheme \"d2\" " + lasting.substr(lasting.find("needs")) + "\"base-2\" has 2 rounds",
       4},
      {{.topology = "ring", .scheme = "d2"},
       "scheme \"d2\" needs mixing weights whose eigenvalues are above -1/3: those of \"ring\" go down to "
       "-0.333; scheme \"exact-diffusion\" takes them",
       4},
      {{.topology = "ring", .scheme = "d2"}, "accepted", 3},
      {{.scheme = "ad-psgd", .one_in = 2},
       "scheme \"ad-psgd\" needs one_in = 1, not 2: an averaging is of all values"},
      {{.scheme = {"a2cid2", {{"rate", 0}}}}, "rate = 0 is not allowed: at least 0.001 and at most 1000"},
      {{.scheme = {"cta", {{"rate", 2}}}}, "rate = 2" + rates + "1"},
      {{.scheme = {"ad-psgd", {{"clock", "even"}}}}, "clock \"even\" is not allowed: poisson or fixed"},
      {{.scheme = {"ad-psgd", {{"clock", "fixd"}}}},
       "clock \"fixd\" is not allowed, did you mean fixed?: poisson or fixed"},
      {{.scheme = {"cta", {{"clock", "fixed"}}}}, "clock \"fixed\" is for schemes a2cid2, ..."},
      {{.scheme = {"a2cid2", {{"eta", -0.5}}}}, "eta = -0.5 is not allowed: at least 0 and at most 1000"},
      {{.scheme = {"a2cid2", {{"alpha_tilde", 1001}}}},
       "alpha_tilde = 1001 is not allowed: at least 0 and at most 1000"},
      {{.topology = "ring", .scheme = {"a2cid2", {{"alpha_tilde", 2}}}, .wire = Wire::int4},
       "alpha_tilde = 2 is not allowed with wire \"int4\": at most 1, since its rounding errors would grow "
       "without end"},
      {{.scheme = {"ad-psgd", {{"eta", 0.5}}}},
       "eta = 0.5 is for scheme \"a2cid2\", not \"ad-psgd\": leave it out"},
      {{.scheme = {"ad-psgd", {{"local_steps", 2}}}},
       "local_steps = 2 is for scheme \"swarm\", not \"ad-psgd\": use 1"},
      {{.scheme = {"swarm", {{"local_steps", 0}}}},
       "local_steps = 0 is not allowed: at least 1 and at most 1048576"},
      {{.topology = "complete", .scheme = "ad-psgd-bipartite"},
       "the graph has no two sides: neighbours 1 and 2 would be on the same...",
       3},
      {{.topology = "complete", .scheme = "ad-psgd-bipartite"}, "accepted", 2},
      {{.topology = "n-peer-exponential-1", .scheme = "async-push-pull", .wire = Wire::fp16},
       "scheme \"async-push-pull\" needs wire fp32, bf16, not \"fp16\": of tracked gradients that are small "
       "nothing would move"},
      {{.scheme = "atc", .hierarchy = "node"}, "hierarchy \"node\" needs scheme \"cta\", not \"atc\"", 2},
      {{.hierarchy = "rack"}, "hierarchy \"rack\" is unknown: none or node"},
      {{.hierarchy = "nodes"}, "hierarchy \"nodes\" is unknown, did you mean node?: none or node"},
      {{.hierarchy = "node", .workers_per_node = 2},
       "3 workers are no whole number of nodes with 2 workers each...",
       3}};
  for (const Refusal& the : all) {
    const std::string said =
        refusal<UsageError>([&] { check_options(the.options, the.workers, 1, the.around); });
    EXPECT_EQ(said.find('\n'), std::string::npos);
    if (the.message.ends_with("...")) {
      EXPECT_THAT(said, HasSubstr(the.message.substr(0, the.message.size() - 3)));
    } else {
      EXPECT_EQ(said, the.message);
    }
  }
}

// ---------------------------------------------------------------- the table

TEST(SchemesTable, HasEachNameOnceAndTellsTheNearest) {
  const std::vector<std::string> names = scheme_names();
  for (const std::string& name : names) EXPECT_EQ(std::ranges::count(names, name), 1) << name;
  EXPECT_EQ(SchemeChoice().name, names.front());
  EXPECT_THAT(refusal<UsageError>([] { scheme_info("chocco"); }), HasSubstr("did you mean choco?"));
  EXPECT_EQ(refusal<UsageError>([] { scheme_info("gossip"); }),
            "scheme \"gossip\" is unknown: " + schemes_that([](const auto&) { return true; }));
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
      EXPECT_EQ(default_text(*own), default_text(*shared.option)) << shared.option->name;
      EXPECT_EQ(allowed_text(*own), allowed_text(*shared.option)) << shared.option->name;
      EXPECT_EQ(own->meaning, shared.option->meaning) << "the help of the key shows one of them";
    }
  }
}

}  // namespace
}  // namespace starling
