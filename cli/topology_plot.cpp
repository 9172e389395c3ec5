#include "cli/topology_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numbers>
#include <vector>

#include <fmt/format.h>

#include "cli/chart.h"
#include "starling/topology/sizes.h"

namespace starling::cli {

namespace {

constexpr std::array kColours = {"#27c", "#c40", "#080", "#90b"};  // of weights, the largest first
constexpr int kLargestDenominator = 1024;

struct Point {
  double x = 0, y = 0;
  bool operator==(const Point&) const = default;
};

double distance(Point a, Point b) { return std::hypot(a.x - b.x, a.y - b.y); }

// The places of the workers, and the size of a round's picture.
struct Places {
  double radius;  // of the circle
  std::vector<Point> at;
  bool in_rows;

  double middle() const { return radius + 18; }
  double head() const { return 22; }  // the title's
  double width() const { return 2 * radius + 46; }
  double height() const { return 2 * radius + 56; }
};

Places places_of(const Schedule& schedule) {
  const int n = schedule.workers();
  Places places{std::max(52.0, 3.2 * n), {}, schedule.name == "grid" || schedule.name == "torus"};
  const double middle = places.middle();
  const int rows = most_square_rows(n), columns = n / rows;
  const double step = (2 * places.radius + 1) / std::max(columns - 1, 1);
  for (int i = 0; i < n; ++i) {
    const double angle = 2 * std::numbers::pi * i / n;
    places.at.push_back(
        places.in_rows
            ? Point{18 + i % columns * step, middle + (i / columns - (rows - 1) / 2.0) * step}
            : Point{middle + places.radius * std::sin(angle), middle - places.radius * std::cos(angle)});
  }
  return places;
}

// A line from a to b: straight, but around workers between them in a row or column.
std::string line(const Places& places, Point a, Point b) {
  const bool between = places.in_rows && std::any_of(places.at.begin(), places.at.end(), [&](Point p) {
                         return p != a && p != b && distance(a, p) + distance(p, b) < distance(a, b) + 1e-6;
                       });
  if (!between) return fmt::format("M{:.1f} {:.1f}L{:.1f} {:.1f}", a.x, a.y, b.x, b.y);
  return fmt::format("M{:.1f} {:.1f}Q{:.1f} {:.1f} {:.1f} {:.1f}", a.x, a.y,
                     (a.x + b.x) / 2 + (b.y - a.y) / 3, (a.y + b.y) / 2 + (b.x - a.x) / 3, b.x, b.y);
}

std::string round_picture(const Places& places, const Graph& graph, std::size_t r) {
  std::map<double, std::string, std::greater<>> texts;
  for (const auto& row : graph.neighbours) {
    for (const Neighbour& j : row) texts.emplace(j.weight, weight_text(j.weight));
  }
  std::vector<std::string> legend;  // weights that are equal but for rounding: once
  for (const auto& [weight, text] : texts) {
    if (legend.empty() || legend.back() != text) legend.push_back(text);
  }
  std::string svg = fmt::format("<g transform=\"translate({:g} {:g})\">\n",
                                static_cast<double>(r) * places.width(), places.head());
  for (int i = 0; i < graph.workers(); ++i) {
    for (const auto& [j, weight] : graph.neighbours[i]) {
      const bool both = graph.weight(j, i) == weight;
      if (both && j < i) continue;
      const auto k =
          static_cast<std::size_t>(std::find(legend.begin(), legend.end(), texts[weight]) - legend.begin()) %
          kColours.size();
      svg += fmt::format("<path d=\"{}\" stroke=\"{}\"{}/>\n", line(places, places.at[j], places.at[i]),
                         kColours[k],
                         // From the sender.
                         both ? "" : fmt::format(" marker-end=\"url(#a{})\"", k));
    }
  }
  for (std::size_t i = 0; i < places.at.size(); ++i) {
    const auto [x, y] = places.at[i];
    svg += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"9\" fill=\"#fff\" stroke=\"#444\"/><text x=\"{:.1f}\" "
        "y=\"{:.1f}\" fill=\"#000\">{}</text>\n",
        x, y, x, y + 3.5, i);
  }
  std::string weights;
  for (std::size_t k = 0; k < legend.size(); ++k) {
    weights += fmt::format("{}<tspan fill=\"{}\">{}</tspan>", k == 0 ? "" : " ",
                           kColours[k % kColours.size()], legend[k]);
  }
  return svg + fmt::format("<text x=\"{:g}\" y=\"{:g}\" fill=\"#000\">round {}: {}</text></g>\n",
                           places.middle(), places.height() - 8, r, weights);
}

}  // namespace

std::string weight_text(double weight) {
  for (int denominator = 1; denominator <= kLargestDenominator; ++denominator) {
    const double numerator = weight * denominator;
    if (std::abs(numerator - std::round(numerator)) < 1e-9)
      return fmt::format("{:.0f}/{}", numerator, denominator);
  }
  return fmt::format("{:.6g}", weight);
}

std::string picture(const Schedule& schedule, std::size_t shown) {
  const Places places = places_of(schedule);
  const std::size_t period = schedule.rounds.size();
  const std::string title =
      fmt::format("{}, {} worker{}, {}: lines carry the weights below them", schedule.name,
                  schedule.workers(), schedule.workers() == 1 ? "" : "s",
                  period == shown ? fmt::format("{} round{}", period, period == 1 ? "" : "s")
                                  : fmt::format("{} of {} rounds", shown, period));
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:g}\" height=\"{1:g}\" font-family=\"sans-serif\" "
      "font-size=\"10\" text-anchor=\"middle\" fill=\"none\" role=\"img\">\n<title>{2}</title>\n<defs>",
      places.width() * static_cast<double>(shown), places.height() + places.head(), escaped(title));
  for (std::size_t k = 0; k < kColours.size(); ++k) {
    svg += fmt::format(
        "<marker id=\"a{}\" viewBox=\"0 0 8 8\" refX=\"16\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" "
        "orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"{}\"/></marker>",
        k, kColours[k]);
  }
  svg += "</defs>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n";
  svg +=
      fmt::format("<text x=\"8\" y=\"15\" font-size=\"12\" text-anchor=\"start\" fill=\"#000\">{}</text>\n",
                  escaped(title));
  for (std::size_t r = 0; r < shown; ++r) svg += round_picture(places, schedule.rounds[r], r);
  return svg + "</svg>\n";
}

}  // namespace starling::cli
