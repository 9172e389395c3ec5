// Rounds of a schedule as a picture.
#pragma once

#include <cstddef>
#include <string>

#include "starling/topology/graph.h"

namespace starling::cli {

// "4/5" instead of 0.8, if the weight is a ratio of small whole numbers.
std::string weight_text(double weight);

// The first `shown` rounds side by side, as SVG. Workers stand on a circle; those of grid and torus
// stand in rows and columns. A line joins every two workers that mix. If only one of them receives,
// an arrow points to it. Each weight has a colour.
std::string picture(const Schedule& schedule, std::size_t shown);

}  // namespace starling::cli
