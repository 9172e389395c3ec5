// Another number of workers than was measured, on hosts like those that were.
#pragma once

#include <vector>

#include "starling/plan/profile.h"
#include "starling/plan/simulate.h"

namespace starling {

// Of the host that has most.
int workers_per_host(const Profile& profile);

// n workers on the measured hosts over and over, each with as many workers as the largest of them, and with the slow links between
// them. From a host to a copy of it nothing was measured: there a link is as most are. Of as many as were measured it is
// the measured network. Throws UsageError where only one host was measured and n workers need more.
Network network_of(const Profile& profile, int n);

// On that network, which is network_of(profile, n): what the measured ones take, times what the formula says of these workers over
// what it says of those.
std::vector<AllReduceTime> all_reduces_of(const Profile& profile, const Network& network);

}  // namespace starling
