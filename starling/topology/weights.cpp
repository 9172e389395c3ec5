#include "starling/topology/weights.h"

#include <algorithm>

namespace starling {

void add_arc(Graph& graph, int i, int j, double weight) {
  std::vector<Neighbour>& row = graph.neighbours[i];
  row.insert(std::ranges::lower_bound(row, j, {}, &Neighbour::rank), Neighbour{j, weight});
}

void add_edge(Graph& graph, int i, int j, double weight) {
  add_arc(graph, i, j, weight);
  add_arc(graph, j, i, weight);
}

void add_group(Graph& graph, const std::vector<int>& group) {
  const double weight = 1.0 / static_cast<double>(group.size());
  for (int i : group) {
    for (int j : group) {
      if (i != j) add_arc(graph, i, j, weight);
    }
  }
}

Graph push_sum_shares(int n, const std::set<std::pair<int, int>>& arcs) {
  std::vector<int> d(n, 1);
  for (const auto& [i, j] : arcs) ++d[j];
  Graph graph(n);
  for (const auto& [i, j] : arcs) add_arc(graph, i, j, 1.0 / d[j]);
  return graph;
}

Graph metropolis_hastings(int n, const Edges& edges) {
  std::vector<int> d(n, 1);
  for (const auto& [i, j] : edges) ++d[i], ++d[j];
  Graph graph(n);
  for (const auto& [i, j] : edges) add_edge(graph, i, j, 1.0 / std::max(d[i], d[j]));
  return graph;
}

}  // namespace starling
