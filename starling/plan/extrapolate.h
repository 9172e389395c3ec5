// Extrapolation to another number of workers than measured, on similar hosts.
#pragma once

#include <vector>

#include "starling/plan/profile.h"
#include "starling/plan/simulate.h"

namespace starling {

// The number of workers on the largest host.
int workers_per_host(const Profile& profile);

// n workers on repeated copies of the measured hosts, each with as many workers as the largest of
// them, and with the slow links between them. A link from a host to its own copy was not measured,
// and counts as a typical one. For the measured number of workers it is the measured network.
// Throws UsageError if only one host was measured and n workers need more.
Network network_of(const Profile& profile, int n);

// All-reduce times on that network, which is network_of(profile, n): the measured times, multiplied
// by the formula's time for these workers over its time for the measured ones.
std::vector<AllReduceTime> all_reduces_of(const Profile& profile, const Network& network);

}  // namespace starling
