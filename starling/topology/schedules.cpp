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

struct Family {
  ScheduleInfo info;
  Rounds (*make)(int n, int number, int workers_per_node);
  int least = 0;  // of the number that stands for K or SEED
};

const std::vector<Family>& families() {
  static const std::vector<Family> all = {
      {{"complete", "complete", "everyone with everyone, 1/n each: exact every round, n - 1 peers"},
       [](int n, int, int) { return complete(n); }},
      {{"ring", "ring", "static ring, left and right neighbour, 1/3 each: 2 peers, never exact for n > 3"},
       [](int n, int, int) { return ring(n); }},
      {{"one-peer-ring", "one-peer-ring",
        "right and left neighbour of the ring in turn, 1/2 each: 1 peer; even n"},
       [](int n, int, int) { return one_peer_ring(n); }},
      {{"one-peer-exponential", "one-peer-exponential",
        "pairs i, i XOR 2^j, 1/2 each: 1 peer, exact after log2 n rounds; n = 2^r"},
       [](int n, int, int) { return one_peer_exponential(n); }},
      {{"one-peer-exponential-directed", "one-peer-exponential-directed",
        "half from i + 2^j: 1 peer, any n; not symmetric, so that a failed exchange moves the mean"},
       [](int n, int, int) { return one_peer_exponential_directed(n); }},
      {{"static-exponential", "static-exponential",
        "from all i + 2^j in every round: about log2 n peers, any n; not symmetric"},
       [](int n, int, int) { return static_exponential(n); }},
      {{"hypercube", "hypercube", "all i XOR 2^j in every round: log2 n peers, symmetric; n = 2^r"},
       [](int n, int, int) { return hypercube(n); }},
      {{"hyper-hypercube-K", "hyper-hypercube-2",
        "hyper-hypercube-2, ...-3, ...: groups of at most K, exact after about log_K n rounds; "
        "n without prime factors above K"},
       [](int n, int K, int) { return hyper_hypercube_rounds(n, K - 1); },
       2},
      {{"base-K", "base-2",
        "base-2, base-3, ...: at most K - 1 peers, exact after about 2 log_K n rounds, any n"},
       [](int n, int K, int) { return base(n, K - 1); },
       2},
      {{"simple-base-K", "simple-base-2",
        "the plainer form of base-K: the same promises, for some n more rounds"},
       [](int n, int K, int) { return simple_base(n, K - 1); },
       2},
      {{"alternating-exp-ring", "alternating-exp-ring",
        "inside nodes and between pairs of nodes in turn: exact after 2 log2 m rounds; "
        "m = 2^r nodes"},
       [](int n, int, int workers_per_node) { return alternating_exp_ring(n, workers_per_node); }},
      {{"star", "star", "everyone with worker 0, 1/n each: n - 1 peers for worker 0, 1 for the others"},
       [](int n, int, int) { return star(n); }},
      {{"grid", "grid", "rows and columns, as square as possible: at most 4 peers, any n"},
       [](int n, int, int) { return grid(n); }},
      {{"torus", "torus", "the grid with its ends joined: at most 4 peers, any n"},
       [](int n, int, int) { return torus(n); }},
      {{"random-matching", "random-matching",
        "random pairs, the same on all workers, 1/2 each: 1 peer, any n (one idles where n is odd)"},
       [](int n, int, int) { return random_matching(n, 0); }},
      {{"random-matching-SEED", "random-matching-7", "the same with other pairs"},
       [](int n, int seed, int) { return random_matching(n, seed); }},
  };
  return all;
}

// The number in `name` where it is one of `family`, 0 for a family without one; nothing when it is not.
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
  if (n < 1) throw UsageError(fmt::format("schedule {} needs at least 1 worker, got {}", name, n));
  if (workers_per_node < 1) {
    throw UsageError(
        fmt::format("schedule {} needs at least 1 worker per node, got {}", name, workers_per_node));
  }
  if (name.ends_with(".toml") || name.ends_with(".json")) return {name, custom(name, n)};
  std::vector<std::string> names;
  for (const Family& family : families()) {
    names.push_back(family.info.name);
    const auto number = number_in(name, family);
    if (!number) continue;
    Schedule schedule{name, n == 1 ? Rounds{} : family.make(n, *number, workers_per_node)};
    if (schedule.rounds.empty()) schedule.rounds.emplace_back(n);  // one worker: a round without neighbours
    return schedule;
  }
  throw UsageError(fmt::format("unknown schedule '{}': known are {}, and files that end in .toml or .json",
                               name, fmt::join(names, ", ")));
}

}  // namespace starling
