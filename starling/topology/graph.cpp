#include "starling/topology/graph.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "starling/core/random.h"

namespace starling {

double Graph::weight(int i, int j) const {
  const std::vector<Neighbour>& row = neighbours[i];
  const auto found = std::ranges::lower_bound(row, j, {}, &Neighbour::rank);
  return found != row.end() && found->rank == j ? found->weight : 0.0;
}

double Graph::self_weight(int rank) const {
  double others = 0;
  for (const Neighbour& j : neighbours[rank]) others += j.weight;
  return 1.0 - others;
}

bool Graph::symmetric() const {
  for (int i = 0; i < workers(); ++i) {
    for (const Neighbour& j : neighbours[i]) {
      if (std::abs(j.weight - weight(j.rank, i)) > 1e-12) return false;
    }
  }
  return true;
}

bool Graph::balanced() const {
  std::vector<double> excess(neighbours.size());  // taken minus given
  for (int i = 0; i < workers(); ++i) {
    for (const Neighbour& j : neighbours[i]) {
      excess[i] += j.weight;
      excess[j.rank] -= j.weight;
    }
  }
  return std::ranges::all_of(excess, [](double e) { return std::abs(e) <= 1e-9; });
}

Schedule Schedule::for_each_place(int workers_per_node) const {
  Schedule all{name, {}};
  for (const Graph& nodes : rounds) {
    Graph& graph = all.rounds.emplace_back(nodes.workers() * workers_per_node);
    for (int i = 0; i < graph.workers(); ++i) {
      for (const Neighbour& j : nodes.neighbours[i / workers_per_node])
        graph.neighbours[i].push_back({j.rank * workers_per_node + i % workers_per_node, j.weight});
    }
  }
  return all;
}

std::vector<std::vector<Neighbour>> for_ranks(const std::vector<std::vector<Neighbour>>& rows,
                                              const std::vector<int>& ranks, int size) {
  std::vector<std::vector<Neighbour>> all(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (const Neighbour& j : rows[i])
      all[static_cast<std::size_t>(ranks[i])].push_back({ranks[static_cast<std::size_t>(j.rank)], j.weight});
  }
  return all;
}

Schedule Schedule::for_ranks(const std::vector<int>& ranks, int size) const {
  Schedule all{name, {}};
  for (const Graph& graph : rounds)
    all.rounds.emplace_back().neighbours = starling::for_ranks(graph.neighbours, ranks, size);
  return all;
}

Schedule without_neighbours(int workers) { return {"none", {Graph(workers)}}; }

std::uint64_t Schedule::fingerprint() const {
  std::uint64_t x = 0;
  for (const Graph& graph : rounds) {
    for (const auto& row : graph.neighbours) {
      x = random_bits({x, row.size()});
      for (const Neighbour& j : row) {
        x = random_bits({x, static_cast<std::uint64_t>(j.rank), std::bit_cast<std::uint64_t>(j.weight)});
      }
    }
  }
  return x;
}

}  // namespace starling
