// Matchings of largest weight, in any undirected graph.
#pragma once

#include <cstdint>
#include <vector>

namespace starling {

// A symmetric n x n matrix of weights, row by row. A weight above 0 is an edge. Weights are at most
// 2^40.
struct EdgeWeights {
  int n = 0;
  std::vector<std::int64_t> values;

  explicit EdgeWeights(int size) : n(size), values(static_cast<std::size_t>(size) * size) {}
  std::int64_t at(int i, int j) const { return values[static_cast<std::size_t>(i) * n + j]; }
  void set(int i, int j, std::int64_t weight) {
    values[static_cast<std::size_t>(i) * n + j] = values[static_cast<std::size_t>(j) * n + i] = weight;
  }
};

// The partner of each vertex, or -1. The pairs have the largest sum of weights. O(n^3), and the
// same on every machine.
std::vector<int> heaviest_matching(const EdgeWeights& weights);

}  // namespace starling
