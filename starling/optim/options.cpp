#include "starling/optim/options.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starling/core/error.h"
#include "starling/core/text.h"
#include "starling/optim/schemes/table.h"
#include "starling/topology/schedules.h"

namespace starling {
namespace {

[[noreturn]] void refuse(const std::string& why) { throw UsageError(why); }

template <class T>
void check_range(std::string_view name, T value, const Range& range) {
  if (!range.holds(static_cast<double>(value)))
    refuse(fmt::format("{} = {} is not allowed: it must be {}", name, value, range.text()));
}

// The names of the schemes that satisfy the predicate.
template <class Predicate>
std::string schemes_with(const Predicate& predicate) {
  std::vector<std::string_view> names;
  for (const SchemeInfo* const info : schemes()) {
    if (predicate(*info)) names.push_back(info->name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

void check_scheme(const SchemeInfo& info, const Options& options, bool around) {
  const SchemeTraits& traits = info.traits;
  const auto refused = std::ranges::find(traits.refused_wires, options.wire, &RefusedWire::wire);
  if (refused != traits.refused_wires.end())
    refuse(fmt::format("scheme \"{}\" needs wire {}, not \"{}\": {}", info.name,
                       fmt::join(wires_of(info), ", "), name_of(options.wire), refused->reason));
  check_range("one_in", options.one_in, ranges::one_in);
  if (options.one_in != 1 && !traits.all_values.empty())
    refuse(fmt::format("scheme \"{}\" needs one_in = 1, not {}: {}", info.name, options.one_in,
                       traits.all_values));
  check_range("mean_every", options.mean_every, ranges::mean_every);
  if (options.mean_every > 0 && traits.path == Path::pairs)
    refuse(fmt::format(
        "scheme \"{}\" takes no mean_every: each worker makes steps of its own, so there is no step "
        "at which all could take their mean",
        info.name));
  if (options.mean_every > 0 && traits.equal)
    refuse(
        fmt::format("scheme \"{}\" takes no mean_every: its workers are equal after each step", info.name));
  if (around && !traits.own_rule.empty())
    refuse(fmt::format("scheme \"{}\" needs one of Starling's rules, not another optimizer: {}", info.name,
                       traits.own_rule));
  if (options.max_wait)
    check_range("max_wait", std::chrono::duration<double>(*options.max_wait).count(), ranges::max_wait);
  if (options.max_wait && (traits.path == Path::pairs || traits.edges == EdgeKind::none))
    refuse(fmt::format("max_wait is not for scheme \"{}\", which waits {}: leave it out", info.name,
                       traits.path == Path::gradients ? "for all workers in each step" : "for no neighbour"));
  if (traits.sums_gradients && options.loss_scaling)
    refuse(
        fmt::format("scheme \"{}\" takes no loss_scaling: gradients of all workers are added up, and each "
                    "has a scale of its own",
                    info.name));
  if (traits.sums_gradients && options.skip_not_finite)
    refuse(
        fmt::format("scheme \"{}\" takes no skip_not_finite: a gradient that is not finite is left out of "
                    "what is tracked anyway",
                    info.name));
}

bool exchanges_parameters(const SchemeInfo& info) {
  const SchemeTraits& traits = info.traits;
  return traits.path != Path::gradients && traits.edges != EdgeKind::none &&
         traits.contents.chooser != Chooser::sender;
}

// It measures the parameters that arrive.
void check_jump_guard(const SchemeInfo& info, const Options& options) {
  check_range("jump_guard", options.jump_guard, ranges::jump_guard);
  if (options.jump_guard == 0) return;
  if (options.jump_guard < 2)
    refuse(fmt::format("jump_guard = {} is not allowed: it must be 0, or at least 2", options.jump_guard));
  if (!exchanges_parameters(info))
    refuse(
        fmt::format("jump_guard = {} needs scheme \"{}\", not \"{}\", whose workers exchange no parameters",
                    options.jump_guard, schemes_with(exchanges_parameters), info.name));
  if (is_modular(options.wire))
    refuse(fmt::format(
        "jump_guard = {} needs wire fp32, bf16 or fp16, not \"{}\": its codes show small distances alone",
        options.jump_guard, name_of(options.wire)));
}

// Local steps, and the outer optimizer.
void check_outer(const SchemeInfo& info, const Options& options) {
  const int every = options.every, mean_every = options.mean_every;
  check_range("every", every, ranges::every);
  if (every > 1 && !info.traits.local_steps)
    refuse(fmt::format("every = {} needs scheme \"{}\", not \"{}\"", every,
                       schemes_with([](const SchemeInfo& i) { return i.traits.local_steps; }), info.name));
  if (every > 1 && options.hierarchy != "none")
    refuse("every is not for hierarchy \"node\", whose workers average the gradients of each step");
  if (mean_every % every != 0)
    refuse(fmt::format("mean_every = {} is no multiple of every = {}: a mean follows an exchange", mean_every,
                       every));
  check_range("outer_lr", options.outer_lr, ranges::outer_lr);
  check_range("outer_momentum", options.outer_momentum, ranges::outer_momentum);
  check_range("outer_warmup", options.outer_warmup, ranges::outer_warmup);
  outer_lr_of(options);
  outer_momentum_of(options);
  if (options.outer == "none") {
    const Options standard{};
    const int used = info.traits.outer_options;
    for (const auto& [name, given] :
         {std::pair("outer_lr", used < 1 && options.outer_lr != standard.outer_lr),
          std::pair("outer_momentum", used < 2 && options.outer_momentum != standard.outer_momentum),
          std::pair("outer_warmup", options.outer_warmup > 0),
          std::pair("outer_lr_at", !options.outer_lr_at.empty()),
          std::pair("outer_momentum_at", !options.outer_momentum_at.empty())}) {
      if (given) refuse(fmt::format("{} needs outer \"sgd\" or \"nesterov\", not \"none\"", name));
    }
    return;
  }
  if (options.outer != "sgd" && options.outer != "nesterov")
    refuse(fmt::format("outer \"{}\" is unknown{}: none, sgd or nesterov", options.outer,
                       did_you_mean(options.outer, {"none", "sgd", "nesterov"})));
  if (mean_every == 0 && !info.traits.takes_outer)
    refuse(fmt::format("outer \"{}\" needs mean_every, or scheme \"{}\", not \"{}\"", options.outer,
                       schemes_with([](const SchemeInfo& i) { return i.traits.takes_outer; }), info.name));
  if (options.outer_warmup > 0 && mean_every == 0)
    refuse(fmt::format("outer_warmup = {} needs mean_every: all workers take their mean in each of its steps",
                       options.outer_warmup));
  if (mean_every > 0 && options.outer_warmup % mean_every != 0)
    refuse(fmt::format("outer_warmup = {} is no multiple of mean_every = {}: it ends with an outer step",
                       options.outer_warmup, mean_every));
  if (options.hierarchy != "none") refuse("outer is not for hierarchy \"node\", whose workers own blocks");
}

void check_gradients(const Options& options, bool around) {
  if (!std::isfinite(options.clip) || options.clip < 0)
    refuse(fmt::format("clip = {} is not allowed: it must be finite and at least 0", options.clip));
  if (around && options.clear_gradients)
    refuse("clear_gradients needs one of Starling's rules: another optimizer's have a zero_grad()");
  if (around && (options.clip > 0 || options.loss_scaling)) {
    refuse(
        "clip and loss_scaling need one of Starling's rules: around another optimizer call "
        "torch's clip_grad_norm_ before step()");
  }
  if (!options.loss_scaling) return;
  if (!LossScale::allows(options.loss_scaling->initial))
    refuse(fmt::format("loss_scaling: initial = {} is not allowed: it must be above 0 and a float",
                       options.loss_scaling->initial));
  if (options.loss_scaling->grow_every < 1)
    refuse(fmt::format("loss_scaling: grow_every = {} is not allowed: it must be at least 1",
                       options.loss_scaling->grow_every));
}

void check_hierarchy(const Options& options, int workers, int local_workers, bool around) {
  const std::string& hierarchy = options.hierarchy;
  if (hierarchy == "none") return;
  if (hierarchy != "node")
    refuse(fmt::format("hierarchy \"{}\" is unknown{}: none or node", hierarchy,
                       did_you_mean(hierarchy, {"none", "node"})));
  if (scheme_of(options).make_in_nodes == nullptr)
    refuse(fmt::format("hierarchy \"node\" needs scheme \"{}\", not \"{}\"",
                       schemes_with([](const SchemeInfo& info) { return info.make_in_nodes != nullptr; }),
                       options.scheme.name));
  if (around)
    refuse("hierarchy \"node\" needs one of Starling's rules: another optimizer's state cannot be divided");
  const int per_node = workers_per_node(options, local_workers);
  if (workers % per_node != 0)
    refuse(fmt::format("hierarchy \"node\": {} workers are no whole number of nodes with {} workers each",
                       workers, per_node));
}

}  // namespace

const SchemeInfo& scheme_of(const Options& options) { return scheme_info(options.scheme.name); }

std::uint64_t period_of(const Options& options) {
  return static_cast<std::uint64_t>(options.mean_every > 0 ? options.mean_every : options.every);
}

Course outer_lr_of(const Options& options) {
  return {"outer_lr_at", options.outer_lr_at, options.outer_lr, at_least(0)};
}

Course outer_momentum_of(const Options& options) {
  return {"outer_momentum_at", options.outer_momentum_at, options.outer_momentum, from_below(0, 1)};
}

bool averages_in_pairs(const Options& options) { return scheme_of(options).traits.path == Path::pairs; }

int workers_per_node(const Options& options, int local_workers) {
  return options.workers_per_node == 0 ? local_workers : options.workers_per_node;
}

Schedule schedule_of(const Options& options, int workers, int local_workers) {
  const SchemeTraits& traits = scheme_of(options).traits;
  if (traits.rounds != nullptr) return traits.rounds(workers);
  const int per_node = workers_per_node(options, local_workers);
  if (traits.edges == EdgeKind::directed) return make_shares(options.topology, workers, per_node);
  if (options.hierarchy == "none") return make_schedule(options.topology, workers, per_node);
  return make_schedule(options.topology, workers / per_node).for_each_place(per_node);
}

void check_options(const Options& options, int workers, int local_workers, bool around) {
  const SchemeInfo& info = scheme_of(options);
  const SchemeSettings settings(options.scheme);
  check_scheme(info, options, around);
  check_jump_guard(info, options);
  check_outer(info, options);
  check_gradients(options, around);
  check_hierarchy(options, workers, local_workers, around);
  const Schedule schedule = schedule_of(options, workers, local_workers);
  if (info.traits.edges == EdgeKind::lasting)
    check_lasting_edges(schedule, fmt::format("scheme \"{}\"", info.name));
  if (info.check != nullptr) info.check(options, settings, schedule);
}

Terms terms_of(const Options& options) {
  Terms terms{{"scheme", options.scheme.name},
              {"topology", options.topology},
              {"wire", std::string(name_of(options.wire))},
              {"one_in", std::to_string(options.one_in)},
              {"every", std::to_string(options.every)},
              {"mean_every", std::to_string(options.mean_every)},
              {"outer", options.outer},
              {"outer_lr", fmt::format("{}", options.outer_lr)},
              {"outer_momentum", fmt::format("{}", options.outer_momentum)},
              {"outer_warmup", std::to_string(options.outer_warmup)},
              {"outer_lr_at", in_quotes(options.outer_lr_at)},
              {"outer_momentum_at", in_quotes(options.outer_momentum_at)},
              {"jump_guard", fmt::format("{}", options.jump_guard)},
              {"seed", std::to_string(options.seed)}};
  const SchemeSettings settings(options.scheme);
  for (const auto& [option, value] : settings.all())
    terms.emplace_back(std::string(option->name), value_text(value));
  const Terms rest{{"block_bytes", std::to_string(options.block_bytes)},
                   {"hierarchy", options.hierarchy},
                   {"workers_per_node", std::to_string(options.workers_per_node)},
                   {"clip", fmt::format("{}", options.clip)},
                   {"skip_not_finite", fmt::format("{}", options.skip_not_finite)},
                   {"loss_scaling", options.loss_scaling ? fmt::format("from {}, grows every {} steps",
                                                                       options.loss_scaling->initial,
                                                                       options.loss_scaling->grow_every)
                                                         : "none"}};
  terms.insert(terms.end(), rest.begin(), rest.end());
  return terms;
}

std::string needs_float32(const Options& options, bool around) {
  if (options.hierarchy == "node")
    return "with hierarchy \"node\" it must be float32, since a node's workers share no fp32 masters";
  if (around)
    return "around another optimizer it must be float32, since only Starling's rules step the fp32 master of "
           "one in bfloat16 or float16";
  return "";
}

std::string not_for_rejoin(const Options& options) {
  const SchemeInfo& info = scheme_of(options);
  if (info.path_of(SchemeSettings(options.scheme)) == Path::gradients)
    return fmt::format("scheme {}: it ends when a worker dies; restart the job from a checkpoint", info.name);
  return options.hierarchy == "none" ? "" : "mixing.hierarchy: the workers of a node depend on each other";
}

}  // namespace starling
