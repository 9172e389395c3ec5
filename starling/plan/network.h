// The network and the work of the runtime model: hosts, links, blocks and recorded times.
#pragma once

#include <vector>

#include "starling/plan/profile.h"

namespace starling {

// Rates in bytes a second, latencies in seconds.
struct Network {
  std::vector<int> host_of;  // of every worker
  std::vector<Host> hosts;   // only their rates are used
  double latency = 0;
  double inside_latency = 0;
  double inside_rate = 0;
  std::vector<HostLink> links;  // exceptions
  // By rising peers; empty: exchanges with many peers reach all of the interfaces.
  std::vector<Shape> shapes;
};

struct Work {
  std::vector<double> block_bytes;  // by block, as sent to a neighbour
  std::vector<double> mean_bytes;   // the mean of a group, and a block of gradients
  bool groups = true;               // false: groups exchange in pairs
  std::vector<Compute> compute;     // worker i uses compute[i mod size]
  // Steps from one exchange to the next: all but the last one are the workers' own.
  int every = 1;
  // Steps from one exact mean of all workers to the next, a multiple of `every`; 0: there is none.
  int mean_every = 0;
  double model_bytes = 0;  // what a worker sends in each round of an exact mean
};

// The share of the interfaces that exchanges with so many peers at once reach: linear between two
// of the shapes, constant beyond them, and 1 without any.
double share_of(const std::vector<Shape>& shapes, int peers);

// The measured network and work of a profile, for the measured workers. Blocks go in fp32.
Network network_of(const Profile& profile);
Work work_of(const Profile& profile);

}  // namespace starling
