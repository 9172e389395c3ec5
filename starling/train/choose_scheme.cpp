#include "starling/train/choose_scheme.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starling/core/error.h"
#include "starling/core/range.h"
#include "starling/core/text.h"
#include "starling/gossip/rates.h"
#include "starling/optim/options.h"
#include "starling/optim/rule_step.h"
#include "starling/optim/schemes/table.h"
#include "starling/plan/all_reduce.h"
#include "starling/plan/asynchronous.h"
#include "starling/plan/choose.h"
#include "starling/plan/schedules.h"
#include "starling/topology/schedules.h"
#include "starling/train/planned_scheme.h"

namespace starling {
namespace {

constexpr Horizon kSimulated{.iterations = 24, .warm_up = 8};
constexpr Horizon kInPairs{.iterations = 200, .warm_up = 20};  // times and pairs are random
constexpr int kBlocks = 4;
constexpr double kBytes = 400e6;  // of the model: its blocks are large
constexpr int kMostLocal = 512;   // steps
constexpr int kOuterFrom = 16;    // steps between two means: then an outer optimizer steps after them
constexpr const char* kOtherRule = "other";
constexpr Evidence kNarrowWires{"accuracy over bf16 and int8, with cta", "docs/results.md#accuracy"};
constexpr Evidence kNodes{"a step of a hierarchy beside a ring", "docs/results/measurements.md#a-step"};
constexpr Evidence kMemory{"bytes per parameter, with cta", "docs/results/measurements.md#memory"};

// Workers whose compute takes one second, on links as in the situation.
Profile profile_of(const Situation& in, int workers_per_node) {
  Profile profile;
  const double rate = kBytes / std::max(in.link_over_compute, 1e-6);
  for (int i = 0; i < in.workers / in.workers_per_node * workers_per_node; ++i) {
    if (i % workers_per_node == 0)
      profile.hosts.push_back({.name = std::to_string(i), .workers = {}, .send = rate, .receive = rate});
    profile.hosts.back().workers.push_back(i);
    const double times = i == 0 ? in.straggler : 1;
    profile.compute.push_back({.data_wait = {0},
                               .forward = {0.3 * times},
                               .backward = std::vector<std::vector<double>>(kBlocks, {0.6 * times / kBlocks}),
                               .update = std::vector<std::vector<double>>(kBlocks, {0.1 * times / kBlocks})});
  }
  profile.blocks.assign(kBlocks, kBytes / kBlocks);
  return profile;
}

struct Timing {
  double step = 0;
  double rate = 1;  // in pairs: averagings per gradient if workers ask for one
  double cost() const { return step / std::min(rate, 1.0); }
};

class Combinations {
 public:
  explicit Combinations(const Situation& in)
      : in_(in), profile_(profile_of(in, in.workers_per_node)), nodes_(profile_of(in, 1)) {}

  struct Found {
    Options options;
    Timing time;
  };
  // The scheme's best combination. Throws UsageError if there is none.
  Found best_of(const SchemeInfo& info) {
    check(info);
    std::optional<Found> best;
    std::optional<double> least_memory;  // of combinations that take more than is allowed
    std::string refusal;
    for (Options options : rungs_of(info)) {
      std::optional<Found> here;  // of this rung
      for (const std::string& topology : topologies_for(info)) {
        if (!is_planned(topology, options.wire)) continue;
        options.topology = topology;
        try {
          check_options(options, in_.workers, in_.workers_per_node, in_.rule == kOtherRule);
          if (const double bytes = memory_of(options); in_.memory && bytes > *in_.memory) {
            least_memory = std::min(bytes, least_memory.value_or(bytes));
          } else {
            take(here, {options, time_of(options)});
          }
        } catch (const UsageError& error) {
          if (refusal.empty()) refusal = error.what();
        }
      }
      if (here) take(best, *here);
      if (best && best->time.cost() <= (1 + kHidden) * without_link(info)) break;
    }
    if (!best && least_memory)
      throw UsageError(fmt::format("it takes at least {:.3g} bytes per parameter", *least_memory));
    if (!best) throw UsageError(refusal);
    return *best;
  }

  Suggestion told(const SchemeInfo& info, const Found& found) const;

 private:
  // The mean step if the link takes no time.
  double without_link(const SchemeInfo& info) const {
    return info.traits.path == Path::pairs ? (in_.workers - 1 + in_.straggler) / in_.workers : in_.straggler;
  }
  static void take(std::optional<Found>& best, const Found& next) {
    if (!best || next.time.cost() * (1 + kAsGood) < best->time.cost()) best = next;
  }

  void check(const SchemeInfo& info) const {
    if (in_.failures && info.traits.path == Path::gradients)
      throw UsageError(fmt::format("when a worker dies, {}", info.advice.when_one_dies));
    if (in_.directed && info.traits.edges != EdgeKind::directed)
      throw UsageError("its exchanges go in both directions");
    if (in_.gpu && info.traits.on_host)
      throw UsageError("its exchange is computed on the host: parameters on a GPU cross to it and back");
    if (!in_.topology.empty() && !info.uses_topology())
      throw UsageError("its workers do not keep to the links of a topology");
    if (!in_.rule.empty() && !info.advice.rule.empty() && in_.rule != info.advice.rule)
      throw UsageError(fmt::format("it is meant for rule {}", info.advice.rule));
  }

  std::vector<Options> rungs_of(const SchemeInfo& info) const;
  std::vector<std::string> topologies_for(const SchemeInfo& info) const;

  Schedule rounds_of(const Options& options) const {
    if (options.hierarchy == "node")
      return make_schedule(options.topology, in_.workers / in_.workers_per_node);
    return schedule_of(options, in_.workers, in_.workers_per_node);
  }
  // The wire blocks of a worker and of its neighbours, and what the scheme keeps.
  double memory_of(const Options& options) const {
    const SchemeTraits& traits = scheme_of(options).traits;
    const Schedule rounds = rounds_of(options);
    std::size_t peers = 0;
    for (const Graph& graph : rounds.rounds) {
      for (const auto& neighbours : graph.neighbours) peers = std::max(peers, neighbours.size());
    }
    if (traits.path == Path::pairs) peers = 1;  // one averaging at a time
    const auto others = static_cast<double>(peers);
    const Work work = work_on(profile_, options, rounds, typical_block());
    // To four digits: the trailers of modular codes do not count.
    const double block =
        std::round(1e4 * sizeof(float) * work.block_bytes.front() / profile_.blocks.front()) / 1e4;
    int vectors = traits.kept;
    if (options.every > 1) vectors += traits.kept_if_local;
    if (options.outer != "none") vectors += 2;
    return (traits.edges == EdgeKind::none ? 0 : block * (1 + others)) +
           sizeof(float) * (vectors + traits.kept_per_neighbour * others);
  }

  Timing time_of(const Options& options) {
    const SchemeInfo& info = scheme_of(options);
    const Network network = network_of(options.hierarchy == "node" ? nodes_ : profile_);
    if (info.traits.path == Path::gradients)
      return {simulate_all_reduce(network, work_of(profile_), kSimulated).step};
    const Profile& profile = options.hierarchy == "node" ? nodes_ : profile_;
    const Schedule rounds = rounds_of(options);
    const Work work = work_on(profile, options, rounds, typical_block());
    const auto mixing = planned_as(options.scheme);
    const bool directed = info.traits.edges == EdgeKind::directed;
    const Key key{mixing, directed, rounds.fingerprint(), work.block_bytes.front(), work.groups, work.every};
    const auto known = times_.find(key);
    if (known != times_.end()) return known->second;
    if (mixing) return times_[key] = {simulate(network, work, rounds, *mixing, kSimulated).step};
    const auto outcome = simulate_asynchronous(
        network, work, directed ? push_rates(rounds, 1) : pair_rates(rounds, 1), kInPairs);
    if (outcome.rate == 0)
      throw UsageError(fmt::format("an averaging takes longer than {} steps", kInPairs.iterations));
    return times_[key] = {outcome.step.step, outcome.rate};
  }

  const Situation& in_;
  const Profile profile_, nodes_;  // of workers, and of nodes that exchange as one worker
  // The last one: Work::every. Means are taken by workers without neighbours alone.
  using Key = std::tuple<std::optional<Mixing>, bool, std::uint64_t, double, bool, int>;
  std::map<Key, Timing> times_;
};

std::vector<Options> Combinations::rungs_of(const SchemeInfo& info) const {
  Options options{.scheme = std::string(info.name), .workers_per_node = in_.workers_per_node};
  const bool alone = info.traits.edges == EdgeKind::none && info.takes_means();
  if (info.make_in_nodes != nullptr && in_.workers_per_node > 1 && !in_.failures && !in_.gpu &&
      in_.rule != kOtherRule)
    options.hierarchy = "node";
  std::vector<Options> rungs;
  const bool top_k = info.traits.contents.chooser == Chooser::sender && info.traits.all_values.empty();
  for (const int one_in : top_k ? std::vector{4, 16, 64} : std::vector{1}) {
    options.one_in = one_in;
    for (const std::string_view name : wires_of(info)) {
      options.wire = wire_named(std::string(name));
      if (!alone && options.wire != Wire::fp16) rungs.push_back(options);  // as many bytes as bf16
    }
  }
  if (options.wire == Wire::int4) options.wire = Wire::int8;
  if (std::ranges::none_of(topologies_for(info), [&](auto& name) { return is_planned(name, options.wire); }))
    options.wire = Wire::bf16;
  options.hierarchy = "none";
  for (int steps = 2; steps <= kMostLocal && (alone || info.traits.local_steps); steps *= 2) {
    (alone ? options.mean_every : options.every) = steps;
    if (alone && steps >= kOuterFrom) options.outer = "nesterov";
    rungs.push_back(options);
  }
  return rungs;
}

std::vector<std::string> Combinations::topologies_for(const SchemeInfo& info) const {
  if (!info.uses_topology()) return {Options().topology};
  if (!in_.topology.empty()) return {in_.topology};
  if (!info.advice.topology.empty()) return {std::string(info.advice.topology)};
  std::vector<std::string> directed;
  if (info.traits.edges == EdgeKind::directed) {
    for (const ScheduleInfo& family : known_schedules()) {
      try {
        const Schedule schedule = make_schedule(family.example, in_.workers, in_.workers_per_node);
        if (!std::ranges::all_of(schedule.rounds, &Graph::symmetric)) directed.push_back(family.example);
      } catch (const UsageError&) {  // the family does not exist for this number of workers
      }
    }
  }
  return directed.empty() ? planned_schedules(in_.workers, in_.workers_per_node) : directed;
}

// How well a scheme bears skewed data: 0 is best.
int skewed(const SchemeInfo& info) { return info.traits.exact ? 0 : info.advice.bears_skew ? 1 : 2; }

bool is_study(const Evidence& one) { return one.where.ends_with(".toml"); }

// Whether an exchange sends not all values, or not in each step.
bool sends_in_part(const Options& options) {
  return options.every > 1 || options.mean_every > 0 || options.one_in > 1 || depends_on_shapes(options);
}

// The evidence of a scheme for this situation and these options.
std::vector<Evidence> evidence_of(const SchemeInfo& info, const Situation& in, const Options& options) {
  const bool sends_little = sends_in_part(options) || is_modular(options.wire);
  std::vector<Evidence> all;
  for (const Evidence& one : info.advice.evidence) {
    const bool applies = one.where == kSkewStudy.where       ? in.skew != Skew::none
                         : one.where == kSlowLinkStudy.where ? sends_little
                                                             : !one.where.empty();
    if (applies) all.push_back(one);
  }
  return all;
}

bool is_measured(const std::vector<Evidence>& evidence) { return !std::ranges::all_of(evidence, is_study); }

Suggestion Combinations::told(const SchemeInfo& info, const Found& found) const {
  const auto& [options, time] = found;
  const SchemeAdvice& advice = info.advice;
  Suggestion all{.options = options, .step = time.step, .memory = memory_of(options)};
  const auto say = [&](bool holds, std::string sentence) {
    if (holds) all.reasons.push_back(std::move(sentence));
  };
  const bool in_pairs = info.traits.path == Path::pairs;
  say(!advice.good_for.empty(), fmt::format("Good for {}.", advice.good_for));
  say(in_pairs, fmt::format("A step waits for nobody; the network carries {:.2f} averagings per gradient.",
                            std::min(time.rate, 1.0)));
  const double waits = 1 - without_link(info) / time.step;
  say(!in_pairs, waits <= kAsGood
                     ? "The link hides behind the compute."
                     : fmt::format("Workers wait for the link for {:.0f} % of a step.", waits * 100));
  say(!in_pairs && in_.straggler > 1, "Each step waits for the slowest worker.");
  say(options.hierarchy == "node", "The workers of a node average their gradients and exchange as one.");
  say(options.one_in > 1, fmt::format("It sends one value in {}.", options.one_in));
  say(depends_on_shapes(options), fmt::format("Its bytes are those of matrices of {0} x {0}.", kTypicalSide));
  say(options.every > 1, fmt::format("Workers exchange once in {} steps.", options.every));
  say(options.mean_every > 0, fmt::format("Workers take their mean once in {} steps.", options.mean_every));
  if (in_.skew != Skew::none)
    say(true, info.traits.exact   ? "A constant learning rate reaches the optimum of all workers' losses."
              : advice.bears_skew ? "It ends beside the optimum of all workers' losses, but bears momentum."
                                  : "It ends beside the optimum of all workers' losses.");
  say(in_.failures,
      fmt::format("When a worker dies, {}.", advice.when_one_dies.empty()
                                                 ? "the others go on with its weight on themselves"
                                                 : advice.when_one_dies));
  say(in_.rule.empty() && !advice.rule.empty(), fmt::format("It is meant for rule {}.", advice.rule));

  const auto add = [&](bool applies, const Evidence& one) {
    auto& list = is_study(one) ? all.to_measure : all.measured;
    if (applies && std::ranges::count(list, one.where, &Evidence::where) == 0) list.push_back(one);
  };
  for (const Evidence& one : evidence_of(info, in_, options)) add(true, one);
  add(options.wire == Wire::bf16 || options.wire == Wire::int8, kNarrowWires);
  add(options.hierarchy == "node", kNodes);
  add(in_.memory.has_value(), kMemory);
  return all;
}

void check(const Situation& in) {
  const auto refuse = [](const std::string& why) { throw UsageError("schemes --for: " + why); };
  const auto number = [&](const char* name, double value, const Range& range) {
    if (!range.holds(value))
      refuse(fmt::format("{} = {} is not allowed: it must be {}", name, value, range.text()));
  };
  number("workers", in.workers, between(2, kMostSuggestedFor));
  number("link-over-compute", in.link_over_compute, between(0, 1e4));
  number("straggler", in.straggler, between(1, 100));
  number("memory", in.memory.value_or(0), at_least(0));
  if (in.workers_per_node < 1 || in.workers % in.workers_per_node != 0)
    refuse(fmt::format("{} workers are no whole number of nodes with {} workers each", in.workers,
                       in.workers_per_node));
  std::vector<std::string> rules;
  for (const Rule& rule : known_rules()) rules.emplace_back(rule_key(rule));
  rules.emplace_back(kOtherRule);
  if (!in.rule.empty() && std::ranges::count(rules, in.rule) == 0)
    refuse(fmt::format("rule {} is unknown{}: {}", in_quotes(in.rule), did_you_mean(in.rule, rules),
                       fmt::join(rules, ", ")));
  if (!in.topology.empty()) make_shares(in.topology, in.workers, in.workers_per_node);
}

}  // namespace

Suggestions suggest(const Situation& situation) {
  check(situation);
  Combinations combinations(situation);
  struct Ranked {
    const SchemeInfo* info;
    Combinations::Found found;
  };
  std::vector<Ranked> ranked;
  Suggestions all;
  for (const SchemeInfo* const info : schemes()) {
    try {
      ranked.push_back({info, combinations.best_of(*info)});
    } catch (const UsageError& error) {
      all.left_out.push_back({std::string(info->name), error.what()});
    }
  }
  const auto cost = [](const Ranked& one) { return one.found.time.cost(); };
  if (ranked.empty()) return all;
  const double fastest = cost(*std::ranges::min_element(ranked, {}, cost));
  std::ranges::stable_sort(ranked, {}, [&](const Ranked& one) {
    const Options& options = one.found.options;
    const double times = cost(one) / fastest;
    const int bears = skewed(*one.info);
    const bool strong = situation.skew == Skew::strong && times <= kPatience;
    const bool measured = is_measured(evidence_of(*one.info, situation, options));
    const bool doubtful = sends_in_part(options) && !measured;  // at what cost to the loss?
    return std::tuple(doubtful, strong ? bears : 2, static_cast<int>(4 * std::min(times, 1e6)),
                      situation.skew == Skew::some ? bears : 0,
                      situation.failures && !one.info->advice.when_one_dies.empty(), sends_in_part(options),
                      !measured, !situation.directed && one.info->traits.edges == EdgeKind::directed,
                      one.info->traits.kept);
  });
  for (const Ranked& one : ranked) all.best.push_back(combinations.told(*one.info, one.found));
  return all;
}

}  // namespace starling
