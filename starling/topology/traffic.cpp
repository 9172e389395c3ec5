#include "starling/topology/traffic.h"

#include <algorithm>
#include <cmath>

namespace starling {

namespace {

std::vector<int> with_itself(const Graph& graph, int i) {
  std::vector<int> members{i};
  for (const Neighbour& j : graph.neighbours[i]) members.push_back(j.rank);
  std::sort(members.begin(), members.end());
  return members;
}

bool takes_mean(const std::vector<Neighbour>& row) {
  const double mean = 1.0 / static_cast<double>(row.size() + 1);
  return std::ranges::all_of(row, [&](const Neighbour& j) { return std::abs(j.weight - mean) < 1e-12; });
}

}  // namespace

std::vector<std::vector<int>> averaging_groups(const Graph& graph) {
  std::vector<std::vector<int>> groups;
  for (int i = 0; i < graph.workers(); ++i) {
    const std::vector<int> members = with_itself(graph, i);
    if (members.size() < 3 || members.front() != i) continue;
    const bool complete = std::ranges::all_of(
        members, [&](int j) { return takes_mean(graph.neighbours[j]) && with_itself(graph, j) == members; });
    if (complete) groups.push_back(members);
  }
  return groups;
}

std::vector<double> sent(const Graph& graph, const Sizes& sizes) {
  std::vector<double> models(graph.workers());
  for (const auto& row : graph.neighbours) {
    for (const Neighbour& j : row) models[j.rank] += sizes.block;
  }
  if (!sizes.groups) return models;
  for (const auto& group : averaging_groups(graph)) {
    const auto g = static_cast<double>(group.size());
    for (int i : group) models[i] = (sizes.block + sizes.mean) * (g - 1) / g;
  }
  return models;
}

std::vector<double> sent_by_nodes(const Graph& graph, int workers_per_node, const Sizes& sizes) {
  const auto node = [&](int i) { return static_cast<std::size_t>(i / workers_per_node); };
  std::vector<double> models(node(graph.workers() - 1) + 1);
  std::vector<bool> grouped(graph.workers());
  if (sizes.groups) {
    for (const auto& group : averaging_groups(graph)) {
      const double shards = (sizes.block + sizes.mean) / static_cast<double>(group.size());
      for (int i : group) {
        grouped[i] = true;
        for (int j : group) {
          if (node(i) != node(j)) models[node(i)] += shards;
        }
      }
    }
  }
  for (int i = 0; i < graph.workers(); ++i) {
    for (const Neighbour& j : graph.neighbours[i]) {
      if (!grouped[i] && node(i) != node(j.rank)) models[node(j.rank)] += sizes.block;
    }
  }
  return models;
}

}  // namespace starling
