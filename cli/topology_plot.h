// Rounds of a schedule as a picture.
#pragma once

#include <cstddef>
#include <string>

#include "starling/topology/graph.h"

namespace starling::cli {

// "4/5" rather than 0.8, where the weight is a ratio of small whole numbers.
std::string weight_text(double weight);

// The first `shown` rounds side by side, as SVG: the workers on a circle (of grid and torus in their rows and columns), a
// line for every two that mix, an arrow to the one who receives where only one does, a colour for each weight.
std::string picture(const Schedule& schedule, std::size_t shown);

}  // namespace starling::cli
