#include "starling/plan/round_traffic.h"

#include <map>
#include <utility>

#include "starling/exchange/in_turn.h"
#include "starling/topology/traffic.h"

namespace starling {

RoundTraffic traffic_of(const Graph& graph, const Network& network, bool groups) {
  const int n = graph.workers();
  RoundTraffic round;
  round.group_of.assign(n, -1);
  if (groups) round.groups = averaging_groups(graph);
  for (std::size_t g = 0; g < round.groups.size(); ++g) {
    for (int i : round.groups[g]) round.group_of[i] = static_cast<int>(g);
  }
  std::vector<std::vector<int>> targets(n);
  round.sources.assign(n, 0);
  for (int i = 0; i < n; ++i) {
    const auto peers = static_cast<int>(graph.neighbours[i].size());
    const bool in_group = round.group_of[i] >= 0;
    // As good as one peer.
    const bool in_turn = in_group && peers > static_cast<int>(InTurn::kAtOnce);
    round.share.push_back(share_of(network.shapes, in_turn ? 1 : peers));
    if (in_group) continue;
    for (const Neighbour& j : graph.neighbours[i]) targets[j.rank].push_back(i);
    round.sources[i] = peers;
  }
  for (const auto& list : targets) {
    round.first.push_back(static_cast<int>(round.targets.size()));
    round.targets.insert(round.targets.end(), list.begin(), list.end());
  }
  round.first.push_back(static_cast<int>(round.targets.size()));
  return round;
}

std::vector<Route> connect(std::vector<RoundTraffic>& rounds, const std::vector<int>& host_of, Links& links) {
  std::vector<Route> routes;
  const auto n = static_cast<int>(host_of.size());
  std::map<std::pair<int, int>, int> known;
  const auto connection = [&](int i, int j) {
    const auto [entry, is_new] = known.try_emplace({i, j}, links.connections());
    if (is_new) {
      routes.push_back({i, j});
      links.connect(host_of[i], host_of[j]);
    }
    return entry->second;
  };
  for (RoundTraffic& round : rounds) {
    std::vector<std::vector<int>> hosts_of;  // by group: its members' hosts
    for (const auto& group : round.groups) {
      auto& hosts = hosts_of.emplace_back();
      for (int i : group) hosts.push_back(host_of[i]);
    }
    for (int i = 0; i < n; ++i) {
      const int host = host_of[i];
      for (int k = round.first[i]; k < round.first[i + 1]; ++k) {
        const int j = round.targets[k], to = host_of[j];
        if (host == to) {
          round.connections.push_back(-1);
          continue;
        }
        round.connections.push_back(connection(i, j));
        connection(j, i);  // beside it in memory: both are mostly in use at once
      }
      const int group = round.group_of[i];
      const bool outside =
          group >= 0 && std::ranges::any_of(hosts_of[group], [&](int other) { return other != host; });
      round.to_group.push_back(outside ? links.connections() : -1);
      if (!outside) continue;
      routes.push_back({i, -1 - group});
      links.connect_group(host, hosts_of[group]);
    }
  }
  for (RoundTraffic& round : rounds) {
    for (int i = 0; i < n; ++i) {
      for (int k = round.first[i]; k < round.first[i + 1]; ++k)
        round.back.push_back(round.connection(round.targets[k], i));
    }
  }
  return routes;
}

}  // namespace starling
