// Recursions that mix and do more, such as schemes with momentum: do they bring workers together?
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "starling/topology/graph.h"

namespace starling {

// W x, with one value for each worker.
std::vector<double> mixed_by(const Graph& graph, std::span<const double> x);

// Whether workers with random values end no farther apart than they began. `step` replaces x by the
// values after a round; it may keep more. At least 300 rounds and 30 periods are tried.
bool brings_together(const Schedule& schedule,
                     const std::function<void(const Graph& round, std::vector<double>& x)>& step);

}  // namespace starling
