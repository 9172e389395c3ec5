#include "starling/topology/traffic.h"

namespace starling {

std::vector<double> sent(const Graph& graph) {
  std::vector<double> models(graph.workers());
  for (const auto& row : graph.neighbours) {
    for (const Neighbour& j : row) ++models[j.rank];
  }
  return models;
}

}  // namespace starling
