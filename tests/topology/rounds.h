// A round in the papers' notation, for tests: "(0,1)(2,3) (0,4:4/5)". The weight 1/2 is left out.
// Groups of three and more are included.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/topology/schedules.h"

namespace starling {

// Undirected edges by rising rank; a weight other than 1/2 follows as a fraction over
// `denominator`.
inline std::string edges(const Graph& graph, int denominator = 1) {
  std::string text;
  for (int i = 0; i < graph.workers(); ++i) {
    for (const Neighbour& j : graph.neighbours[i]) {
      if (j.rank < i) continue;
      const double numerator = j.weight * denominator;
      if (j.weight == 0.5) {
        text += fmt::format("({},{})", i, j.rank);
      } else if (std::abs(numerator - std::round(numerator)) < 1e-12) {
        text += fmt::format("({},{}:{:.0f}/{})", i, j.rank, numerator, denominator);
      } else {
        text += fmt::format("({},{}:{})", i, j.rank, j.weight);
      }
    }
  }
  return text;
}

inline std::vector<std::string> rounds_of(const std::string& name, int n, int denominator = 1,
                                          int workers_per_node = 1) {
  std::vector<std::string> texts;
  for (const Graph& round : make_schedule(name, n, workers_per_node).rounds)
    texts.push_back(edges(round, denominator));
  return texts;
}

// The schedule, if the family exists for so many workers.
inline std::optional<Schedule> schedule_if_any(const std::string& name, int n, int workers_per_node = 1) {
  try {
    return make_schedule(name, n, workers_per_node);
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

inline int most_peers(const Graph& graph) {
  size_t most = 0;
  for (const auto& row : graph.neighbours) most = std::max(most, row.size());
  return static_cast<int>(most);
}

}  // namespace starling
