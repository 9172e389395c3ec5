// The choice of the fastest schedule by the runtime model. `starling plan` recommends it, and
// topology "auto" uses it.
#pragma once

#include <string>
#include <vector>

#include "starling/kernels/wire.h"
#include "starling/plan/simulate.h"

namespace starling {

constexpr double kAsGood = 0.02;  // share of a step that makes no difference

struct Candidate {
  std::string schedule;
  Wire wire;
  Forecast outcome;
};

// False for complete with modular codes, because it sends n - 1 models in a round.
bool is_planned(const std::string& schedule, Wire wire);

// The candidates within kAsGood of the fastest step, of these the ones over the widest wire, and of
// these the first. `all` is not empty.
const Candidate& recommended(const std::vector<Candidate>& all);

}  // namespace starling
