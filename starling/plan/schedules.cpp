#include "starling/plan/schedules.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>

#include "starling/core/error.h"
#include "starling/topology/schedules.h"

namespace starling {

const std::vector<std::string>& planned_schedules() {
  static const std::vector<std::string> all = {
      "base-2",  "alternating-exp-ring", "hierarchical:base-2", "inner-outer:base-2", "base-3", "ring",
      "complete"};
  return all;
}

std::vector<std::string> planned_schedules(int workers, int workers_per_node, bool alike) {
  std::vector<std::string> names;
  std::set<std::uint64_t> known;
  for (const std::string& name : planned_schedules()) {
    try {
      const std::uint64_t rounds = make_schedule(name, workers, workers_per_node).fingerprint();
      if (!alike && rounds != make_schedule(name, workers).fingerprint()) continue;
      if (known.insert(rounds).second) names.push_back(name);
    } catch (const UsageError&) {  // the family does not exist for this number of workers
    }
  }
  return names;
}

bool hosts_are_alike(const std::vector<int>& host_of) {
  std::map<int, int> workers;  // by host
  for (const int host : host_of) ++workers[host];
  return std::ranges::all_of(workers, [&](const auto& one) { return one.second == workers.begin()->second; });
}

std::vector<Exchanges> planned_exchanges(const std::vector<int>& host_of, int workers_per_host) {
  struct Round {
    int between_hosts = 0;
    Graph graph;
  };
  std::map<int, Round> most;  // by peers
  const auto n = static_cast<int>(host_of.size());
  for (const std::string& name : planned_schedules(n, workers_per_host)) {
    Schedule schedule = make_schedule(name, n, workers_per_host);
    for (Graph& graph : schedule.rounds) {
      int peers = 0, between_hosts = 0;
      for (int i = 0; i < graph.workers(); ++i) {
        peers = std::max(peers, static_cast<int>(graph.neighbours[i].size()));
        for (const Neighbour& j : graph.neighbours[i]) between_hosts += host_of[i] != host_of[j.rank];
      }
      Round& round = most[peers];
      if (between_hosts > round.between_hosts) round = {between_hosts, std::move(graph)};
    }
  }
  std::vector<Exchanges> all;
  for (auto& [peers, round] : most) {
    if (round.between_hosts > 0) all.push_back({peers, std::move(round.graph)});
  }
  return all;
}

}  // namespace starling
