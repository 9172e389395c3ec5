#include "starling/gossip/ask_times.h"

#include "starling/core/random.h"

namespace starling {

// Uniform in (0, 1].
double AskTimes::dice() {
  return uniform_of(random_bits({seed_, static_cast<std::uint64_t>(rank_), ++at_.drawn})) + 0x1p-53;
}

std::vector<double> AskTimes::next_gradient() {
  std::vector<double> due;
  if (rates_.asks[static_cast<std::size_t>(rank_)].empty()) return due;
  if (at_.until_next < 0) {
    at_.until_next = until_next();
    // Otherwise all would ask at the same time, and none answer.
    if (!poisson_) at_.until_next *= dice();
  }
  for (; at_.until_next < 1; at_.until_next += until_next()) due.push_back(at_.until_next);
  at_.until_next -= 1;
  return due;
}

}  // namespace starling
