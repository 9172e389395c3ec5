// Wx in double, as in the papers.
#pragma once

#include <cstddef>
#include <vector>

#include "starling/topology/graph.h"

namespace starling {

// Sum_j W_ij x(j)
template <class X>
double mixed(const Graph& graph, int i, X&& x) {
  double sum = graph.self_weight(i) * x(static_cast<std::size_t>(i));
  for (const Neighbour& j : graph.neighbours[static_cast<std::size_t>(i)])
    sum += j.weight * x(static_cast<std::size_t>(j.rank));
  return sum;
}

// x_i <- Sum_j W_ij x_j
inline std::vector<double> mixed(const std::vector<double>& x, const Graph& graph) {
  std::vector<double> Wx;
  for (int i = 0; i < graph.workers(); ++i)
    Wx.push_back(mixed(graph, i, [&](std::size_t j) { return x[j]; }));
  return Wx;
}

}  // namespace starling
