// A line through points, as SVG.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace starling::cli {

struct Chart {
  std::string x, y;  // the names of the axes
  std::vector<std::pair<double, double>> points;
};

// Escapes text for SVG and HTML.
std::string escaped(const std::string& text);

// Charts side by side. Points that are not finite are left out.
std::string charts_svg(const std::string& title, const std::vector<Chart>& charts);

}  // namespace starling::cli
