// The choice of the fastest schedule by the runtime model. `starling plan` recommends it, and
// topology "auto" uses it.
#pragma once

#include <cstddef>
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

// The values that a worker sends to a neighbour, per parameter and step.
struct Sent {
  Wire wire = Wire::fp32;
  int one_in = 1;           // of so many values one is sent (Options::one_in)
  bool indices = false;     // with their indices
  std::size_t vectors = 1;  // as many as a block's parameters
  int every = 1;            // in one step of so many (Options::every): its bytes count in equal parts
  bool has_mean = true;     // false: groups exchange in pairs
};
// The work of a profile with these exchanges.
Work work_on(const Profile& profile, const Sent& sent);

// False for complete with modular codes, because it sends n - 1 models in a round.
bool is_planned(const std::string& schedule, Wire wire);

// Each of these schedules over each of these wires, with the rest of `sent`, if it is planned.
// Throws UsageError if a schedule does not exist for the network's workers.
std::vector<Candidate> candidates(const Network& network, int workers_per_node, const Profile& profile,
                                  const std::vector<std::string>& schedules, const std::vector<Wire>& wires,
                                  Sent sent, Mixing mixing, const Horizon& run);

// The candidates within kAsGood of the fastest step, of these the ones over the widest wire, and of
// these the first. `all` is not empty.
const Candidate& recommended(const std::vector<Candidate>& all);

}  // namespace starling
