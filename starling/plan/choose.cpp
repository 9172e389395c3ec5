#include "starling/plan/choose.h"

#include <algorithm>

namespace starling {

bool is_planned(const std::string& schedule, Wire wire) {
  return schedule != "complete" || !is_modular(wire);
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
