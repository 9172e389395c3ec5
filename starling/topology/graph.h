// The workers that mix in one round, and their weights.
//
//   n      workers
//   W      mixing matrix of one round; W_ij: the weight that worker i gives to the value of worker
//          j; rows sum to 1
//   round  one exchange of every worker with its neighbours of that round
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace starling {

// Worker i mixes in the value of worker `rank` with `weight`. W_ii is not stored: it is 1 minus the
// sum of the others.
struct Neighbour {
  int rank = 0;
  double weight = 0;
  bool operator==(const Neighbour&) const = default;
};

// The same rows for these of `size` workers, in this order. The others have no neighbours.
std::vector<std::vector<Neighbour>> for_ranks(const std::vector<std::vector<Neighbour>>& rows,
                                              const std::vector<int>& ranks, int size);

// The graph of one round. neighbours[i] is row i of W without its diagonal: the workers that i
// RECEIVES from, by rising rank.
struct Graph {
  std::vector<std::vector<Neighbour>> neighbours;

  Graph() = default;
  explicit Graph(int workers) : neighbours(workers) {}

  int workers() const { return static_cast<int>(neighbours.size()); }
  double weight(int i, int j) const;  // W_ij of two workers; 0 if i does not receive from j
  double self_weight(int rank) const;
  // W_ij = W_ji for all pairs (to 1e-12). The sum of all values is then conserved, and both ends
  // can abort an exchange without drift.
  bool symmetric() const;
  // Every worker gives as much as it takes (to 1e-9), so W is doubly stochastic. Otherwise the
  // weights are shares that workers give, for scheme push-sum: columns sum to 1 with W_jj = 1 -
  // Sum_i W_ij, and rows to anything.
  bool balanced() const;
};

// The periodic sequence of graphs: round r uses rounds[r % rounds.size()].
struct Schedule {
  std::string name;
  std::vector<Graph> rounds;  // at least one

  int workers() const { return rounds.front().workers(); }
  const Graph& at(long long round) const {
    return rounds[static_cast<size_t>(round % static_cast<long long>(rounds.size()))];
  }
  // The same schedule for nodes of `workers_per_node` workers each (consecutive ranks): the workers
  // of equal place on their nodes mix as this schedule says of the nodes.
  Schedule for_each_place(int workers_per_node) const;
  // The same schedule for these of `size` workers, in this order. The others have no neighbours.
  Schedule for_ranks(const std::vector<int>& ranks, int size) const;
  // A hash of the rounds, not of the name. It differs if any two workers mix differently.
  std::uint64_t fingerprint() const;
};
// One round, in which nobody mixes.
Schedule without_neighbours(int workers);

}  // namespace starling
