#include "starling/plan/choose.h"

#include <algorithm>

namespace starling {

bool is_planned(const std::string& schedule, Wire wire) {
  return schedule != "complete" || !is_modular(wire);
}

std::vector<Candidate> candidates(const std::vector<std::string>& schedules, const std::vector<Wire>& wires,
                                  const ForecastOf& forecast) {
  std::vector<Candidate> all;
  for (const std::string& schedule : schedules) {
    for (const Wire wire : wires) {
      if (is_planned(schedule, wire)) all.push_back({schedule, wire, forecast(schedule, wire)});
    }
  }
  return all;
}

const Candidate& recommended(const std::vector<Candidate>& all) {
  const auto step = [](const Candidate& c) { return c.outcome.step; };
  const double fastest = step(*std::ranges::min_element(all, {}, step));
  const auto width = [](const Candidate& c) { return bytes_of(c.wire, 2); };
  const Candidate* best = nullptr;
  for (const Candidate& c : all) {
    if (step(c) <= fastest * (1 + kAsGood) && (best == nullptr || width(c) > width(*best))) best = &c;
  }
  return *best;
}

}  // namespace starling
