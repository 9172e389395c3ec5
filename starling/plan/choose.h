// Which schedule is the fastest, as the runtime model says: what `starling plan` recommends, and what topology "auto" takes.
#pragma once

#include <string>
#include <vector>

#include "starling/kernels/wire.h"
#include "starling/plan/simulate.h"

namespace starling {

constexpr double kAsGood = 0.02;  // of a step: what is no difference

struct Candidate {
  std::string schedule;
  Wire wire;
  Forecast outcome;
};

// The work of a profile over this wire; one value in so many is sent (Options::one_in).
Work work_on(const Profile& profile, Wire wire, int one_in = 1);

// Each of these schedules over each of these wires. Complete with modular codes is left out: it sends n - 1 models in a round.
// Throws UsageError where a schedule does not exist for the network's workers.
std::vector<Candidate> candidates(const Network& network, int workers_per_node, const Profile& profile,
                                  const std::vector<std::string>& schedules, const std::vector<Wire>& wires,
                                  int one_in, Mixing mixing, const Horizon& run);

// Of those within kAsGood of the fastest step those over the widest wire, and of these the first. `all` is not empty.
const Candidate& recommended(const std::vector<Candidate>& all);

}  // namespace starling
