#include "starling/topology/schedules.h"

#include <charconv>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starling/core/error.h"
#include "starling/topology/families.h"

namespace starling {

namespace {

struct Family {
  ScheduleInfo info;
  Rounds (*make)(int n, int parameter, int workers_per_node);
};

const std::vector<Family>& families() {
  static const std::vector<Family> all = {
      {{"complete", "everyone with everyone, 1/n each: exact every round, n - 1 peers"},
       [](int n, int, int) { return complete(n); }},
      {{"ring", "static ring, left and right neighbour, 1/3 each: 2 peers, never exact for n > 3"},
       [](int n, int, int) { return ring(n); }},
      {{"one-peer-ring", "right and left neighbour of the ring in turn, 1/2 each: 1 peer; even n"},
       [](int n, int, int) { return one_peer_ring(n); }},
      {{"one-peer-exponential", "pairs i, i XOR 2^j, 1/2 each: 1 peer, exact after log2 n rounds; n = 2^r"},
       [](int n, int, int) { return one_peer_exponential(n); }},
      {{"one-peer-exponential-directed",
        "half from i + 2^j: 1 peer, any n; not symmetric, so that a failed exchange moves the mean"},
       [](int n, int, int) { return one_peer_exponential_directed(n); }},
      {{"base-K", "base-2, base-3, ...: at most K - 1 peers, exact after about 2 log_K n rounds, any n"},
       [](int n, int K, int) { return base(n, K - 1); }},
      {{"alternating-exp-ring",
        "inside nodes and between pairs of nodes in turn: exact after 2 log2 m rounds; "
        "m = 2^r nodes"},
       [](int n, int, int workers_per_node) { return alternating_exp_ring(n, workers_per_node); }},
  };
  return all;
}

// The K of "base-K"; 0 when the name is none of this family.
int base_of(std::string_view name) {
  constexpr std::string_view prefix = "base-";
  if (!name.starts_with(prefix)) return 0;
  const std::string_view digits = name.substr(prefix.size());
  int K = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), K);
  if (error != std::errc() || end != digits.data() + digits.size() || K < 2) {
    throw UsageError(
        fmt::format("schedule '{}': base-K needs a whole number K of at least 2, as in base-2", name));
  }
  return K;
}

}  // namespace

std::vector<ScheduleInfo> known_schedules() {
  std::vector<ScheduleInfo> infos;
  for (const Family& family : families()) infos.push_back(family.info);
  return infos;
}

Schedule make_schedule(const std::string& name, int n, int workers_per_node) {
  const int K = base_of(name);
  const std::string family_name = K > 0 ? "base-K" : name;
  std::vector<std::string> names;
  for (const Family& family : families()) {
    names.push_back(family.info.name);
    if (family.info.name != family_name) continue;
    if (n < 1) throw UsageError(fmt::format("schedule {} needs at least 1 worker, got {}", name, n));
    if (workers_per_node < 1) {
      throw UsageError(
          fmt::format("schedule {} needs at least 1 worker per node, got {}", name, workers_per_node));
    }
    Schedule schedule{name, n == 1 ? Rounds{} : family.make(n, K, workers_per_node)};
    if (schedule.rounds.empty()) schedule.rounds.emplace_back(n);  // one worker: a round without neighbours
    return schedule;
  }
  throw UsageError(fmt::format("unknown schedule '{}': known are {}", name, fmt::join(names, ", ")));
}

}  // namespace starling
