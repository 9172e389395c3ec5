#include "cli/chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "starling/core/text.h"

namespace starling::cli {

namespace {

constexpr int kTicks = 5;
constexpr std::size_t kMostPoints = 400;  // of a line: more cannot be told apart
constexpr std::size_t kMostDots = 40;     // a line of more points has none

struct Frame {
  static constexpr double kWidth = 480, kHeight = 300, kLeft = 72, kRight = 16, kTop = 36, kBottom = 48;
  static constexpr double kEnd = kWidth - kRight, kFoot = kHeight - kBottom;
  Axis x, y;
  double at_x(double value) const { return kLeft + x.share(value) * (kEnd - kLeft); }
  double at_y(double value) const { return kFoot - y.share(value) * (kFoot - kTop); }
};

// Differences and powers of larger numbers are not finite.
bool finite(const ChartPoint& p) {
  const auto small = [](double value) { return std::abs(value) < 1e100; };
  return small(p.x) && small(p.y) && small(p.least) && small(p.most);
}

// At most kMostPoints of them, each the mean of as many neighbours; its band holds all of theirs.
std::vector<ChartPoint> thinned(const std::vector<ChartPoint>& points) {
  std::vector<ChartPoint> kept;
  std::ranges::copy_if(points, std::back_inserter(kept), finite);
  if (kept.size() <= kMostPoints) return kept;
  std::vector<ChartPoint> thin;
  for (std::size_t i = 0; i < kMostPoints; ++i) {
    const std::size_t first = kept.size() * i / kMostPoints, last = kept.size() * (i + 1) / kMostPoints;
    ChartPoint mean{.x = 0, .y = 0, .least = kept[first].least, .most = kept[first].most};
    for (std::size_t k = first; k < last; ++k) {
      mean.x += kept[k].x / static_cast<double>(last - first);
      mean.y += kept[k].y / static_cast<double>(last - first);
      mean.least = std::min(mean.least, kept[k].least);
      mean.most = std::max(mean.most, kept[k].most);
    }
    thin.push_back(mean);
  }
  return thin;
}

Frame frame_of(const Chart& chart, int x_ticks, int y_ticks) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double x_most = 0, least = kInfinity, most = -kInfinity;
  for (const ChartLine& line : chart.lines) {
    for (const ChartPoint& point : line.points) {
      if (!finite(point)) continue;
      x_most = std::max(x_most, point.x);
      least = std::min({least, point.y, point.least});
      most = std::max({most, point.y, point.most});
    }
  }
  if (least > most) least = 0, most = 1;
  if (chart.from_zero) least = std::min(least, 0.0);
  return {axis_of(0, x_most, x_ticks, false), axis_of(least, most, y_ticks, true)};
}

std::string line_svg(const ChartLine& line, const Frame& frame) {
  const std::vector<ChartPoint> points = thinned(line.points);
  std::string path, band, back, dots;
  bool wide = false;
  for (const ChartPoint& p : points) {
    const double x = frame.at_x(p.x);
    path += fmt::format("{:.1f},{:.1f} ", x, frame.at_y(p.y));
    band += fmt::format("{:.1f},{:.1f} ", x, frame.at_y(p.most));
    back = fmt::format("{:.1f},{:.1f} ", x, frame.at_y(p.least)) + back;
    wide = wide || p.least != p.most;
    if (points.size() <= kMostDots) {
      dots += fmt::format(
          "<circle class=\"dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"><title>{}: {:.6g} at "
          "{:.6g}</title></circle>",
          x, frame.at_y(p.y), escaped(line.name), p.y, p.x);
    }
  }
  std::string svg = fmt::format("<g class=\"{}\">", colour_class(line.colour));
  if (wide) svg += fmt::format("<polygon class=\"band\" points=\"{}{}\"/>", band, back);
  return svg + fmt::format("<polyline class=\"line\" points=\"{}\"/>{}</g>\n", path, dots);
}

// The content of a chart's <svg>.
std::string drawn(const Chart& chart) {
  const Frame frame = frame_of(chart, kTicks, kTicks);
  std::string svg =
      fmt::format("<text class=\"title\" x=\"{}\" y=\"18\">{}</text>\n", Frame::kLeft, escaped(chart.title));
  for (const double tick : frame.y.ticks) {
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/><text class=\"end\" x=\"{}\" "
        "y=\"{:.1f}\">{}</text>\n",
        Frame::kLeft, Frame::kEnd, frame.at_y(tick), frame.at_y(tick), Frame::kLeft - 6, frame.at_y(tick) + 4,
        frame.y.text(tick));
  }
  for (const double tick : frame.x.ticks) {
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/><text class=\"middle\" "
        "x=\"{0:.1f}\" y=\"{3}\">{4}</text>\n",
        frame.at_x(tick), Frame::kFoot, Frame::kFoot + 4, Frame::kFoot + 17, frame.x.text(tick));
  }
  svg += fmt::format("<text class=\"middle\" x=\"{}\" y=\"{}\">{}</text>\n", (Frame::kLeft + Frame::kEnd) / 2,
                     Frame::kHeight - 10, escaped(chart.x));
  svg += fmt::format("<text class=\"middle\" transform=\"translate(14 {}) rotate(-90)\">{}</text>\n",
                     (Frame::kTop + Frame::kFoot) / 2, escaped(chart.y));
  for (const ChartLine& line : chart.lines) svg += line_svg(line, frame);
  return svg;
}

}  // namespace

Axis axis_of(double least, double most, int count, bool whole) {
  const double size = std::max(std::abs(least), std::abs(most));
  if (!(most - least > std::max(1e-9 * size, 1e-100))) most = least + (size < 1e-100 ? 1 : 0.1 * size);
  const double rough = (most - least) / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {5, 2, 1}) {
    if (factor * power >= rough * (1 - 1e-9)) step = factor * power;
  }
  Axis axis{.low = least, .high = most, .ticks = {}};
  if (whole)
    axis.low = step * std::floor(least / step + 1e-9), axis.high = step * std::ceil(most / step - 1e-9);
  const auto first = std::ceil(axis.low / step - 1e-9), last = std::floor(axis.high / step + 1e-9);
  for (double k = first; k <= last; ++k) axis.ticks.push_back(k * step + 0.0);  // no -0
  return axis;
}

std::string Axis::text(double tick) const {
  const double step = ticks.size() > 1 ? ticks[1] - ticks[0] : high - low;
  const double largest = std::max(std::abs(low), std::abs(high));
  if (step < 1e-5 || largest >= 1e6) return tick == 0 ? "0" : fmt::format("{:.4g}", tick);
  const int decimals = std::max(0, static_cast<int>(std::ceil(-std::log10(step) - 1e-9)));
  return fmt::format("{:.{}f}", tick, decimals);
}

std::string escaped(const std::string& text) {
  constexpr std::string_view kSpecial = "<>&\"";
  constexpr std::array<std::string_view, 4> kEscapes{"&lt;", "&gt;", "&amp;", "&quot;"};
  std::string safe;
  for (const char c : printable(text)) {
    const std::size_t special = kSpecial.find(c);
    safe += special == std::string_view::npos ? std::string_view(&c, 1) : kEscapes[special];
  }
  return safe;
}

std::string colour_class(int colour) {
  return fmt::format("c{}{}", colour % kChartColours, colour >= kChartColours ? " dashed" : "");
}

std::string chart_style() {
  std::string style = R"(
:root { --page: #fff; --ink: #1f2328; --soft: #59636e; --rule: #d8dde3;
  --c0: #1d5fd0; --c1: #c2410c; --c2: #15803d; --c3: #8b2fc9; --c4: #b0216b; --c5: #0e7490; --c6: #8a6d00; --c7: #57606a; }
@media (prefers-color-scheme: dark) { :root { --page: #0d1117; --ink: #e6edf3; --soft: #9aa4af; --rule: #30363d;
  --c0: #6ea8ff; --c1: #ff9a5c; --c2: #4cc870; --c3: #c792ff; --c4: #ff85c0; --c5: #4fd0e6; --c6: #e3c341; --c7: #aab4bf; } }
svg text { font: 12px system-ui, sans-serif; fill: var(--soft); }
svg .title { font-size: 13px; font-weight: 600; fill: var(--ink); }
svg .middle { text-anchor: middle; } svg .end { text-anchor: end; }
.grid { stroke: var(--rule); }
.line { fill: none; stroke: var(--c); stroke-width: 1.8; stroke-linejoin: round; }
.dashed .line { stroke-dasharray: 6 4; }
.dot { fill: var(--c); } .band { fill: var(--c); opacity: 0.16; }
)";
  for (int k = 0; k < kChartColours; ++k) style += fmt::format(".c{0} {{ --c: var(--c{0}); }} ", k);
  return style + "\n";
}

std::string chart_svg(const Chart& chart) {
  return fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n{}</svg>\n", Frame::kWidth,
                     Frame::kHeight, escaped(fmt::format("{}: {} against {}", chart.title, chart.y, chart.x)),
                     drawn(chart));
}

std::string charts_svg(const std::string& title, const std::vector<Chart>& charts) {
  constexpr double kHead = 30;
  const double width = Frame::kWidth * 2,
               height = kHead + Frame::kHeight * std::ceil(static_cast<double>(charts.size()) / 2);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\">\n<style>{2}</style>\n"
      "<rect width=\"100%\" height=\"100%\" style=\"fill: var(--page)\"/><text class=\"title\" x=\"12\" "
      "y=\"20\">{3}</text>\n",
      width, height, chart_style(), escaped(title));
  for (std::size_t i = 0; i < charts.size(); ++i) {
    svg += fmt::format("<g transform=\"translate({} {})\">\n{}</g>\n",
                       Frame::kWidth * static_cast<double>(i % 2),
                       kHead + Frame::kHeight * static_cast<double>(i / 2), drawn(charts[i]));
  }
  return svg + "</svg>\n";
}

std::string chart_text(const Chart& chart, int columns, int rows) {
  constexpr std::string_view kMarks = "*o+x#@%&";
  const Frame frame = frame_of(chart, 4, std::max(2, rows / 3));
  std::size_t margin = 0;
  for (const double tick : frame.y.ticks) margin = std::max(margin, frame.y.text(tick).size());
  const auto width = static_cast<std::size_t>(std::max(10, columns - static_cast<int>(margin) - 2));
  const auto row_of = [&](double y) {
    const double row = std::round((1 - frame.y.share(y)) * (rows - 1));
    return static_cast<std::size_t>(std::clamp(row, 0.0, rows - 1.0));
  };
  std::vector<std::string> grid(static_cast<std::size_t>(rows), std::string(width, ' '));
  std::vector<std::string> labels(grid.size());
  for (const double tick : frame.y.ticks) labels[row_of(tick)] = frame.y.text(tick);
  std::string key;
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    const char mark = kMarks[i % kMarks.size()];
    std::vector<ChartPoint> points = thinned(chart.lines[i].points);
    std::ranges::stable_sort(points, {}, &ChartPoint::x);
    for (std::size_t column = 0; column < width && !points.empty(); ++column) {
      const double x = frame.x.high * static_cast<double>(column) / static_cast<double>(width - 1);
      if (x > points.back().x + frame.x.high / static_cast<double>(2 * width)) continue;
      const auto after = std::ranges::lower_bound(points, x, {}, &ChartPoint::x);
      if (after == points.begin() && after->x - x > frame.x.high / static_cast<double>(width)) continue;
      double y = (after == points.end() ? points.back() : *after).y;
      if (after != points.begin() && after != points.end()) {
        const ChartPoint& before = *std::prev(after);
        y = before.y + (after->y - before.y) * (x - before.x) / (after->x - before.x);
      }
      grid[row_of(y)][column] = mark;
    }
    key += fmt::format("{}{} {}", i == 0 ? "" : "   ", mark, chart.lines[i].name);
  }
  std::string text = fmt::format("{}:   {}\n", chart.y, key);
  for (std::size_t row = 0; row < grid.size(); ++row) {
    const std::size_t end = grid[row].find_last_not_of(' ');
    text += fmt::format("{:>{}} |{}\n", labels[row], margin,
                        grid[row].substr(0, end == std::string::npos ? 0 : end + 1));
  }
  text += fmt::format("{:>{}} +{}\n", "", margin, std::string(width, '-'));
  std::string below(width, ' ');
  for (const double tick : frame.x.ticks) {
    const std::string label = frame.x.text(tick);
    const auto at =
        static_cast<std::size_t>(std::round(frame.x.share(tick) * static_cast<double>(width - 1)));
    const std::size_t begin =
        std::min(at < label.size() / 2 ? 0 : at - label.size() / 2, width - std::min(width, label.size()));
    below.replace(begin, label.size(), label);
  }
  text += fmt::format("{:>{}}  {}\n", "", margin, below);
  return text + fmt::format("{:>{}}\n", chart.x, margin + 2 + width);
}

}  // namespace starling::cli
