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

// The work of a profile over this wire. One of `one_in` values is sent (Options::one_in).
Work work_on(const Profile& profile, Wire wire, int one_in = 1);

// Each of these schedules over each of these wires. Complete with modular codes is left out,
// because it sends n - 1 models in a round. Throws UsageError if a schedule does not exist for the
// network's workers.
std::vector<Candidate> candidates(const Network& network, int workers_per_node, const Profile& profile,
                                  const std::vector<std::string>& schedules, const std::vector<Wire>& wires,
                                  int one_in, Mixing mixing, const Horizon& run);

// The candidates within kAsGood of the fastest step, of these the ones over the widest wire, and of
// these the first. `all` is not empty.
const Candidate& recommended(const std::vector<Candidate>& all);

}  // namespace starling
