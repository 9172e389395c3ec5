#include "starling/optim/options.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starling/core/error.h"
#include "starling/gossip/ad_psgd.h"
#include "starling/kernels/mask.h"
#include "starling/topology/ceca.h"
#include "starling/topology/schedules.h"

namespace starling {

const std::vector<std::string>& known_schemes() {
  static const std::vector<std::string> all = {"cta",
                                               "atc",
                                               "ceca-2p",
                                               "choco",
                                               "push-sum",
                                               "a2cid2",
                                               "ad-psgd",
                                               "ad-psgd-bipartite",
                                               "swarm",
                                               "async-push-sum",
                                               "async-push-pull",
                                               "all-reduce"};
  return all;
}

namespace {

const std::vector<std::string> kAsynchronous = {"a2cid2", "ad-psgd",        "ad-psgd-bipartite",
                                                "swarm",  "async-push-sum", "async-push-pull"};

void check_scheme(const Options& options) {
  const std::string& scheme = options.scheme;
  if (std::ranges::count(known_schemes(), scheme) == 0)
    throw UsageError(fmt::format("scheme \"{}\" is unknown: {}", scheme, fmt::join(known_schemes(), ", ")));
  if (scheme == "all-reduce" && options.wire != Wire::fp32)
    throw UsageError(
        fmt::format("wire \"{}\" is for parameters, but scheme \"all-reduce\" sends gradients: use fp32",
                    name_of(options.wire)));
  if (options.one_in < 1 || options.one_in > Mask::kMost)
    throw UsageError(
        fmt::format("one_in = {} is not allowed: from 1, all values, to {}", options.one_in, Mask::kMost));
  if (scheme == "all-reduce" && options.one_in != 1)
    throw UsageError(
        fmt::format("one_in = {} leaves out parameters, but scheme \"all-reduce\" sends gradients: use 1",
                    options.one_in));
}

void check_gradients(const Options& options, bool around) {
  if (!std::isfinite(options.clip) || options.clip < 0)
    throw UsageError(fmt::format("clip = {} is not allowed: it must be finite and at least 0", options.clip));
  if (around && options.clear_gradients)
    throw UsageError("clear_gradients needs one of Starling's rules: another optimizer's have a zero_grad()");
  if (around && (options.clip > 0 || options.skip_not_finite || options.loss_scaling)) {
    throw UsageError(
        "clip, skip_not_finite and loss_scaling need one of Starling's rules: around another optimizer call "
        "torch's clip_grad_norm_ before step()");
  }
  if (!options.loss_scaling) return;
  if (!LossScale::allows(options.loss_scaling->initial)) {
    throw UsageError(fmt::format("loss_scaling: initial = {} is not allowed: it must be above 0 and a float",
                                 options.loss_scaling->initial));
  }
  if (options.loss_scaling->grow_every < 1) {
    throw UsageError(fmt::format("loss_scaling: grow_every = {} is not allowed: it must be at least 1",
                                 options.loss_scaling->grow_every));
  }
}

void check_ceca(const Options& options, bool around) {
  if (options.scheme != "ceca-2p") return;
  const auto refuse = [](const std::string& why) { throw UsageError("scheme \"ceca-2p\" " + why); };
  if (around)
    refuse(
        "needs one of Starling's rules, not another optimizer: its two vectors take the rule's step "
        "together");
  if (options.one_in != 1)
    refuse(fmt::format("needs one_in = 1, not {}: a value that misses rounds is never averaged exactly",
                       options.one_in));
}

void check_choco(const Options& options, bool around) {
  if (!(options.gamma >= 0 && options.gamma <= 1))
    throw UsageError(
        fmt::format("gamma = {} is not allowed: from 0, which stands for the default, to 1", options.gamma));
  if (options.scheme != "choco") {
    if (options.gamma != 0)
      throw UsageError(fmt::format("gamma = {} is for scheme \"choco\", not \"{}\": use 0", options.gamma,
                                   options.scheme));
    return;
  }
  const auto refuse = [](const std::string& why) { throw UsageError("scheme \"choco\" " + why); };
  if (around) refuse("needs one of Starling's rules, not another optimizer");
  if (options.wire != Wire::fp32)
    refuse(fmt::format("needs wire \"fp32\", not \"{}\"", name_of(options.wire)));
}

void check_directed(const Options& options, bool around) {
  if (options.staleness < 0 || options.staleness > 1000)
    throw UsageError(fmt::format("staleness = {} is not allowed: from 0 to 1000", options.staleness));
  if (options.scheme != "push-sum") {
    if (options.staleness != 0)
      throw UsageError(fmt::format("staleness = {} is for scheme \"push-sum\", not \"{}\": use 0",
                                   options.staleness, options.scheme));
  }
  if (!is_directed(options)) return;
  const auto refuse = [&](const std::string& why) {
    throw UsageError(fmt::format("scheme \"{}\" {}", options.scheme, why));
  };
  if (around && options.scheme == "push-sum")
    refuse("needs one of Starling's rules, not another optimizer: its step is divided by a worker's weight");
  if (is_modular(options.wire))
    refuse(fmt::format(
        "needs wire fp32, bf16 or fp16, not \"{}\": a push takes away what it adds, by its value, "
        "and modular codes say only how far two values are apart",
        name_of(options.wire)));
  if (options.one_in != 1)
    refuse(fmt::format("needs one_in = 1, not {}: a push is of all values of a block", options.one_in));
  if (options.scheme != "async-push-pull") return;
  if (options.wire == Wire::fp16)
    refuse("needs wire fp32 or bf16, not \"fp16\": of tracked gradients that are small nothing would move");
  if (options.loss_scaling)
    refuse("takes no loss_scaling: gradients of all workers are added up, and each has a scale of its own");
  if (options.skip_not_finite)
    refuse("takes no skip_not_finite: a gradient that is not finite is left out of what is tracked anyway");
}

// A worker must have something left: what it gives may be lost to it, and what it would receive too.
void check_shares(const Schedule& schedule) {
  for (std::size_t r = 0; r < schedule.rounds.size(); ++r) {
    const Graph& graph = schedule.rounds[r];
    std::vector<double> given(static_cast<std::size_t>(graph.workers()));
    for (const auto& row : graph.neighbours) {
      for (const Neighbour& j : row) given[static_cast<std::size_t>(j.rank)] += j.weight;
    }
    const auto most = std::ranges::max_element(given);
    if (*most > 1 - 1e-4) {
      throw UsageError(fmt::format(
          "scheme \"push-sum\" needs a topology in which every worker keeps a share of itself: in round "
          "{} of \"{}\" worker {} gives all away",
          r, schedule.name, most - given.begin()));
    }
  }
}

void check_asynchronous(const Options& options) {
  if (options.local_steps < 1)
    throw UsageError(fmt::format("local_steps = {} is not allowed: from 1", options.local_steps));
  if (options.local_steps != 1 && options.scheme != "swarm")
    throw UsageError(fmt::format("local_steps = {} is for scheme \"swarm\", not \"{}\": use 1",
                                 options.local_steps, options.scheme));
  if (!(options.rate > 0 && options.rate <= 1000))
    throw UsageError(fmt::format("rate = {} is not allowed: above 0, to 1000", options.rate));
  if (options.clock != "poisson" && options.clock != "fixed")
    throw UsageError(fmt::format("clock \"{}\" is unknown: poisson or fixed", options.clock));
  for (const auto& [name, value] :
       {std::pair("eta", options.eta), std::pair("alpha_tilde", options.alpha_tilde)}) {
    if (!value) continue;
    if (options.scheme != "a2cid2")
      throw UsageError(fmt::format("{} = {} is for scheme \"a2cid2\", not \"{}\": leave it out", name, *value,
                                   options.scheme));
    if (!(*value >= 0 && *value <= 1000))
      throw UsageError(fmt::format("{} = {} is not allowed: from 0 to 1000", name, *value));
  }
  if (!is_asynchronous(options)) {
    const auto refuse = [&](const std::string& what, const std::string& in_place) {
      throw UsageError(fmt::format("{} is for schemes {}, not \"{}\": use {}", what,
                                   fmt::join(kAsynchronous, ", "), options.scheme, in_place));
    };
    if (options.rate != 1) refuse(fmt::format("rate = {}", options.rate), "1");
    if (options.clock != "poisson") refuse(fmt::format("clock \"{}\"", options.clock), "poisson");
    return;
  }
  if (options.max_wait)
    throw UsageError(fmt::format("max_wait is not for scheme \"{}\", which waits for nobody: leave it out",
                                 options.scheme));
  if (options.one_in != 1)
    throw UsageError(
        fmt::format("one_in = {} is not for scheme \"{}\": use 1", options.one_in, options.scheme));
}

void check_hierarchy(const Options& options, int workers, int local_workers, bool around) {
  const std::string& hierarchy = options.hierarchy;
  if (hierarchy == "none") return;
  const auto refuse = [](const std::string& why) { throw UsageError("hierarchy " + why); };
  if (hierarchy != "node") refuse(fmt::format("\"{}\" is unknown: none or node", hierarchy));
  if (options.scheme != "cta")
    refuse(fmt::format("\"node\" needs scheme \"cta\", not \"{}\"", options.scheme));
  if (around) refuse("\"node\" needs one of Starling's rules: another optimizer's state cannot be divided");
  const int per_node = workers_per_node(options, local_workers);
  if (workers % per_node != 0) {
    refuse(fmt::format("\"node\": {} workers are no whole number of nodes with {} workers each", workers,
                       per_node));
  }
}

}  // namespace

bool is_asynchronous(const Options& options) {
  return std::ranges::count(kAsynchronous, options.scheme) != 0;
}

bool is_directed(const Options& options) {
  return is_push_sum(options) || options.scheme == "async-push-pull";
}

bool is_push_sum(const Options& options) {
  return options.scheme == "push-sum" || options.scheme == "async-push-sum";
}

PairRates rates_of(const Options& options, const Schedule& schedule) {
  if (is_directed(options)) return push_rates(schedule, options.rate);
  const PairRates rates = pair_rates(schedule, options.rate);
  return options.scheme == "ad-psgd-bipartite" ? bipartite(rates) : rates;
}

A2cid2 momentum_of(const Options& options, const PairRates& rates) {
  if (options.scheme != "a2cid2") return {};
  A2cid2 constants = a2cid2_of(rates);
  constants.eta = options.eta.value_or(constants.eta);
  constants.alpha_tilde = options.alpha_tilde.value_or(constants.alpha_tilde);
  return constants;
}

int workers_per_node(const Options& options, int local_workers) {
  return options.workers_per_node == 0 ? local_workers : options.workers_per_node;
}

Schedule schedule_of(const Options& options, int workers, int local_workers) {
  if (options.scheme == "all-reduce") return {"none", {Graph(workers)}};
  if (options.scheme == "ceca-2p") return ceca_2p(workers);
  const int per_node = workers_per_node(options, local_workers);
  if (is_directed(options)) return make_shares(options.topology, workers, per_node);
  if (options.hierarchy == "none") return make_schedule(options.topology, workers, per_node);
  return make_schedule(options.topology, workers / per_node).for_each_place(per_node);
}

void check_options(const Options& options, int workers, int local_workers, bool around) {
  check_scheme(options);
  check_gradients(options, around);
  check_ceca(options, around);
  check_choco(options, around);
  check_directed(options, around);
  check_asynchronous(options);
  check_hierarchy(options, workers, local_workers, around);
  const Schedule schedule = schedule_of(options, workers, local_workers);
  if (options.scheme == "push-sum") check_shares(schedule);
  if (options.scheme == "choco") check_lasting_edges(schedule, "scheme \"choco\"");
  if (is_asynchronous(options)) momentum_of(options, rates_of(options, schedule));
}

std::string needs_float32(const Options& options, bool around) {
  if (options.hierarchy == "node")
    return "with hierarchy \"node\" it must be float32, since a node's workers share no fp32 masters";
  if (around)
    return "around another optimizer it must be float32, since only Starling's rules step the fp32 master of "
           "one in bfloat16 or float16";
  return "";
}

std::string needs_cpu(const Options& options) {
  if (options.hierarchy == "node")
    return "with hierarchy \"node\" it must be on the CPU, where a node's gradients are added up";
  if (options.scheme == "cta" || options.scheme == "atc" || options.scheme == "all-reduce" ||
      is_asynchronous(options))
    return "";
  return fmt::format(
      "with scheme \"{}\" it must be on the CPU: on CUDA devices there are cta, atc, all-reduce and the "
      "asynchronous ones",
      options.scheme);
}

}  // namespace starling
