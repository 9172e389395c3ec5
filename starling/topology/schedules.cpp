#include "starling/topology/schedules.h"

#include <cctype>
#include <charconv>
#include <optional>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starling/core/error.h"
#include "starling/topology/families.h"

namespace starling {

namespace {

// The parsed name of a schedule.
struct Asked {
  int n = 0;
  int workers_per_node = 1;
  int number = 0;        // the value of K, P, M or SEED
  std::string schedule;  // the value of SCHEDULE
};

struct Family {
  ScheduleInfo info;
  Rounds (*make)(const Asked&);
  int least = 0;  // least allowed `number`
};

const std::vector<Family>& families() {
  static const std::vector<Family> all = {
      {{"complete", "complete",
        "each worker mixes with all others, 1/n each: exact in every round, n - 1 peers"},
       [](const Asked& a) { return complete(a.n); }},
      {{"ring", "ring", "static ring, left and right neighbour, 1/3 each: 2 peers, never exact for n > 3"},
       [](const Asked& a) { return ring(a.n); }},
      {{"one-peer-ring", "one-peer-ring",
        "right and left neighbour of the ring in turn, 1/2 each: 1 peer; even n"},
       [](const Asked& a) { return one_peer_ring(a.n); }},
      {{"one-peer-exponential", "one-peer-exponential",
        "pairs i, i XOR 2^j, 1/2 each: 1 peer, exact after log2 n rounds; n = 2^r"},
       [](const Asked& a) { return one_peer_exponential(a.n); }},
      {{"one-peer-exponential-directed", "one-peer-exponential-directed",
        "worker i takes half from i + 2^j: 1 peer, any n; not symmetric, so a failed exchange moves the "
        "mean"},
       [](const Asked& a) { return one_peer_exponential_directed(a.n); }},
      {{"n-peer-exponential-P", "n-peer-exponential-2",
        "worker i receives from i + j (P + 1)^k, j = 1..P: P peers, any n; not symmetric"},
       [](const Asked& a) { return n_peer_exponential(a.n, a.number); },
       1},
      {{"static-exponential", "static-exponential",
        "in each round, worker i receives from all i + 2^j: about log2 n peers, any n; not symmetric"},
       [](const Asked& a) { return static_exponential(a.n); }},
      {{"hypercube", "hypercube",
        "in each round, worker i mixes with all i XOR 2^j: log2 n peers, symmetric; n = 2^r"},
       [](const Asked& a) { return hypercube(a.n); }},
      {{"hyper-hypercube-K", "hyper-hypercube-2",
        "hyper-hypercube-2, ...-3, ...: groups of at most K, exact after about log_K n rounds; "
        "n without prime factors above K"},
       [](const Asked& a) { return hyper_hypercube_rounds(a.n, a.number - 1); },
       2},
      {{"base-K", "base-2",
        "base-2, base-3, ...: at most K - 1 peers, exact after about 2 log_K n rounds, any n"},
       [](const Asked& a) { return base(a.n, a.number - 1); },
       2},
      {{"simple-base-K", "simple-base-2",
        "the simpler form of base-K: the same guarantees, more rounds for some n"},
       [](const Asked& a) { return simple_base(a.n, a.number - 1); },
       2},
      {{"alternating-exp-ring", "alternating-exp-ring",
        "inside nodes and between pairs of nodes in turn: exact after twice the rounds of base-2 over the "
        "nodes; whole nodes"},
       [](const Asked& a) { return alternating_exp_ring(a.n, a.workers_per_node); }},
      {{"hierarchical:SCHEDULE", "hierarchical:base-2",
        "the mean inside every node and SCHEDULE between nodes in turn: exact after twice SCHEDULE's rounds; "
        "whole nodes"},
       [](const Asked& a) { return hierarchical(a.n, a.workers_per_node, a.schedule); }},
      {{"inner-outer:SCHEDULE", "inner-outer:base-2",
        "one worker of each node at a time between the nodes, the others inside, by SCHEDULE; whole nodes"},
       [](const Asked& a) { return inner_outer(a.n, a.workers_per_node, a.schedule); }},
      {{"star", "star",
        "all workers mix with worker 0, 1/n each: n - 1 peers for worker 0, 1 for the others"},
       [](const Asked& a) { return star(a.n); }},
      {{"grid", "grid", "rows and columns, as square as possible: at most 4 peers, any n"},
       [](const Asked& a) { return grid(a.n); }},
      {{"torus", "torus", "the grid with its ends joined: at most 4 peers, any n"},
       [](const Asked& a) { return torus(a.n); }},
      {{"erdos-renyi", "erdos-renyi",
        "a random graph, the same in every round and on all workers: about 2 ln n peers, any n"},
       [](const Asked& a) { return erdos_renyi(a.n, 0); }},
      {{"erdos-renyi-SEED", "erdos-renyi-7", "another such graph"},
       [](const Asked& a) { return erdos_renyi(a.n, a.number); }},
      {{"d-equistatic-M", "d-equistatic-3",
        "each worker receives from the workers at M random distances: M peers, any n; not symmetric"},
       [](const Asked& a) { return d_equistatic(a.n, a.number); },
       1},
      {{"u-equistatic-M", "u-equistatic-2",
        "each worker mixes with the workers at M random distances on both sides: at most 2 M peers, any n"},
       [](const Asked& a) { return u_equistatic(a.n, a.number); },
       1},
      {{"od-equidyn", "od-equidyn",
        "each worker takes half from the worker at a random distance, the same for all: 1 peer, any n; not "
        "symmetric"},
       [](const Asked& a) { return od_equidyn(a.n, 0); }},
      {{"od-equidyn-SEED", "od-equidyn-7", "the same with other distances"},
       [](const Asked& a) { return od_equidyn(a.n, a.number); }},
      {{"ou-equidyn", "ou-equidyn",
        "pairs at a random distance, the same on all workers, 1/2 each: 1 peer, any n (some idle)"},
       [](const Asked& a) { return ou_equidyn(a.n, 0); }},
      {{"ou-equidyn-SEED", "ou-equidyn-7", "the same with other distances"},
       [](const Asked& a) { return ou_equidyn(a.n, a.number); }},
      {{"random-matching", "random-matching",
        "random pairs, the same on all workers, 1/2 each: 1 peer, any n (one idles if n is odd)"},
       [](const Asked& a) { return random_matching(a.n, 0); }},
      {{"random-matching-SEED", "random-matching-7", "the same with other pairs"},
       [](const Asked& a) { return random_matching(a.n, a.number); }},
  };
  return all;
}

constexpr std::string_view kOfSchedules = ":SCHEDULE";

// Whether `name` is one of a family of schedules over schedules. `schedule` is then the part after
// the colon.
bool over_schedule(std::string_view name, const Family& family, std::string& schedule) {
  const std::string_view pattern = family.info.name;
  const std::string_view stem =
      pattern.substr(0, pattern.size() - kOfSchedules.size() + 1);  // with its colon
  if (!pattern.ends_with(kOfSchedules) || !name.starts_with(stem)) return false;
  schedule = name.substr(stem.size());
  if (schedule.empty() || schedule.find(':') != std::string::npos) {
    throw UsageError(
        fmt::format("schedule '{}': {} must be followed by one schedule without a colon, as in {}", name,
                    stem, family.info.example));
  }
  return true;
}

// The number in `name` if it is one of `family`, and 0 for a family without a number. Nothing if it
// is none.
std::optional<int> number_in(std::string_view name, const Family& family) {
  const std::string_view pattern = family.info.name;
  const std::size_t stem = pattern.find_last_of('-') + 1;
  const bool numbered = stem > 0 && std::isupper(static_cast<unsigned char>(pattern[stem])) != 0;
  if (!numbered) return name == pattern ? std::optional(0) : std::nullopt;
  if (!name.starts_with(pattern.substr(0, stem))) return std::nullopt;
  const std::string_view digits = name.substr(stem);
  int number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size() || number < family.least) {
    throw UsageError(fmt::format("schedule '{}': {} needs a whole number {} of at least {}, as in {}", name,
                                 pattern, pattern.substr(stem), family.least, family.info.example));
  }
  return number;
}

}  // namespace

std::vector<ScheduleInfo> known_schedules() {
  std::vector<ScheduleInfo> infos;
  for (const Family& family : families()) infos.push_back(family.info);
  return infos;
}

Schedule make_schedule(const std::string& name, int n, int workers_per_node) {
  Schedule schedule = make_shares(name, n, workers_per_node);
  for (std::size_t r = 0; r < schedule.rounds.size(); ++r) {
    if (schedule.rounds[r].balanced()) continue;
    throw UsageError(fmt::format(
        "topology \"{}\" is for push-sum alone: in round {} some workers give more than they take", name, r));
  }
  return schedule;
}

Schedule make_shares(const std::string& name, int n, int workers_per_node) {
  if (n < 1) throw UsageError(fmt::format("schedule {} needs at least 1 worker, got {}", name, n));
  if (workers_per_node < 1) {
    throw UsageError(
        fmt::format("schedule {} needs at least 1 worker per node, got {}", name, workers_per_node));
  }
  for (const Family& family : families()) {
    Asked asked{n, workers_per_node, 0, ""};
    if (!over_schedule(name, family, asked.schedule)) continue;
    if (n > 1) return {name, family.make(asked)};
    return {name, make_schedule(asked.schedule, 1).rounds};  // the inner schedule may be unknown
  }
  if (name.ends_with(".toml") || name.ends_with(".json")) return {name, custom(name, n)};
  std::vector<std::string> names;
  for (const Family& family : families()) {
    names.push_back(family.info.name);
    const auto number = number_in(name, family);
    if (!number) continue;
    Schedule schedule{name, n == 1 ? Rounds{} : family.make({n, workers_per_node, *number, ""})};
    // One worker: a round without neighbours.
    if (schedule.rounds.empty()) schedule.rounds.emplace_back(n);
    return schedule;
  }
  throw UsageError(fmt::format("unknown schedule '{}': known are {}, and files that end in .toml or .json",
                               name, fmt::join(names, ", ")));
}

void check_lasting_edges(const Schedule& schedule, const std::string& who) {
  const std::size_t rounds = schedule.rounds.size();
  if (rounds == 1 && schedule.rounds.front().symmetric()) return;
  throw UsageError(fmt::format(
      "{} needs a topology of one round that is symmetric, such as ring, torus or complete: \"{}\" {}", who,
      schedule.name, rounds == 1 ? "is not symmetric" : fmt::format("has {} rounds", rounds)));
}

}  // namespace starling
