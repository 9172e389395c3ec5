// What a round costs, in bytes.
#pragma once

#include <vector>

#include "starling/topology/graph.h"

namespace starling {

// How many times the model each worker sends: once to everyone that receives from it.
std::vector<double> sent(const Graph& graph);

}  // namespace starling
