// Lines through points with titles, axes and units: as SVG for a browser, as text for a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace starling::cli {

// One axis: round numbers at equal distances.
struct Axis {
  double low = 0, high = 1;
  std::vector<double> ticks;

  double share(double value) const { return (value - low) / (high - low); }  // 0 at low, 1 at high
  std::string text(double tick) const;
};
// An axis for the values of `least` to `most`, with about `count` ticks. `whole`: it ends at ticks.
Axis axis_of(double least, double most, int count, bool whole);

struct ChartPoint {
  double x = 0, y = 0;
  double least = 0, most = 0;  // a band around y; no band where both are y
};

struct ChartLine {
  std::string name;
  std::vector<ChartPoint> points{};  // those that are not finite are left out
  int colour = 0;                    // of kChartColours
};

struct Chart {
  std::string title;
  std::string x, y;  // the axes, with units
  std::vector<ChartLine> lines{};
  bool from_zero = true;  // the axis of y
};

constexpr int kChartColours = 8;                       // further lines repeat them with dashes
constexpr std::size_t kMostLines = 2 * kChartColours;  // that can be told apart

// Escapes text for SVG and HTML, and makes its control characters visible.
std::string escaped(const std::string& text);

// One chart as an <svg> for a page that has the style.
std::string chart_svg(const Chart& chart);
// The style of charts, for light and dark screens: CSS without < and &.
std::string chart_style();
// CSS class of a line's colour.
std::string colour_class(int colour);

// A file: charts in rows of two, with the style.
std::string charts_svg(const std::string& title, const std::vector<Chart>& charts);

// The chart in lines of text of at most `columns` characters, ASCII alone. Each line of the chart
// has its own character, which the first line explains.
std::string chart_text(const Chart& chart, int columns, int rows);

}  // namespace starling::cli
