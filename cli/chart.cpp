#include "cli/chart.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace starling::cli {

namespace {

constexpr double kWidth = 400, kHeight = 260, kLeft = 60, kRight = 15, kTop = 40, kBottom = 45;
constexpr int kTicks = 4;

// From 0, or from the least value if that is lower. If all values are equal, a range around them.
std::pair<double, double> range_of(const std::vector<double>& values) {
  if (values.empty()) return {0, 1};
  const auto [least, most] = std::ranges::minmax(values);
  const double low = std::min(0.0, least);
  return {low, most > low ? most : low + 1};
}

std::string chart_svg(const Chart& chart, double left) {
  std::vector<double> xs, ys;
  for (const auto& [x, y] : chart.points) {
    if (!std::isfinite(x) || !std::isfinite(y)) continue;
    xs.push_back(x);
    ys.push_back(y);
  }
  const auto [x0, x1] = range_of(xs);
  const auto [y0, y1] = range_of(ys);
  const auto at_x = [&](double x) { return left + kLeft + (x - x0) / (x1 - x0) * (kWidth - kLeft - kRight); };
  const auto at_y = [&](double y) {
    return kHeight - kBottom - (y - y0) / (y1 - y0) * (kHeight - kTop - kBottom);
  };
  std::string svg;
  for (int tick = 0; tick <= kTicks; ++tick) {
    const double x = x0 + (x1 - x0) * tick / kTicks, y = y0 + (y1 - y0) * tick / kTicks;
    svg += fmt::format(
        R"(<line x1="{0:.1f}" x2="{1:.1f}" y1="{2:.1f}" y2="{2:.1f}" stroke="#ddd"/><text x="{3:.1f}" y="{4:.1f}" text-anchor="end">{5:.3g}</text>)"
        R"(<text x="{6:.1f}" y="{7:.1f}" text-anchor="middle">{8:.3g}</text>)"
        "\n",
        left + kLeft, left + kWidth - kRight, at_y(y), left + kLeft - 6, at_y(y) + 4, y, at_x(x),
        kHeight - kBottom + 16, x);
  }
  svg += fmt::format(R"(<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>)", (at_x(x0) + at_x(x1)) / 2,
                     kHeight - 8, chart.x);
  svg += fmt::format(R"(<text x="{:.1f}" y="{}">{}</text>)", left + kLeft, kTop - 8, chart.y);
  std::string points;
  for (std::size_t i = 0; i < xs.size(); ++i)
    points += fmt::format("{:.1f},{:.1f} ", at_x(xs[i]), at_y(ys[i]));
  return svg + fmt::format(R"(<polyline points="{}" fill="none" stroke="#27c" stroke-width="2"/>)"
                           "\n",
                           points);
}

}  // namespace

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '&':
        safe += "&amp;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

std::string charts_svg(const std::string& title, const std::vector<Chart>& charts) {
  const double width = kWidth * static_cast<double>(charts.size());
  std::string svg = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" font-family="sans-serif" font-size="11">)"
      "\n"
      R"(<rect width="100%" height="100%" fill="#fff"/><text x="10" y="16" font-size="13">{2}</text>)"
      "\n",
      width, kHeight, escaped(title));
  for (std::size_t i = 0; i < charts.size(); ++i)
    svg += chart_svg(charts[i], kWidth * static_cast<double>(i));
  return svg + "</svg>\n";
}

}  // namespace starling::cli
