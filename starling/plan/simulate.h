// The runtime model: the time of a training step with many workers. It simulates their blocks,
// links and interfaces as discrete events. It uses no torch and no parameters, only times and
// bytes.
//
// A worker's own work comes from recorded iterations. For every iteration it draws one of its
// recorded ones, so that correlated times stay together, and a slow worker stays slow.
//
//   CTA         for each block: wait for the exchange that the last step started, update, start the
//               next. A block has a whole iteration to cross the link.
//   ATC         update and send every block, then wait for all of them.
//   all-reduce  each block is reduced when backward has finished it on all workers, one after the
//               other; updates follow.
//
// The network. Every host has one interface for all of its workers, which sends and receives at
// once. From one worker to another, blocks go one after the other. Concurrent flows over an
// interface have equal parts of it, like TCP flows, and a flow has the smaller of its two ends'
// parts. A large block leaves when both ends have theirs, and neither end has large blocks of the
// last round in flight (exchange/edge.h). Between two workers of one host, blocks cross memory. An
// exchange is over when both ends have the other's block and its acknowledgement (one latency
// more). Exchanges with several peers at once may reach a smaller or larger part of the interfaces
// than exchanges with one: Network::shapes.
//
// Groups of three and more that take their mean do a reduce-scatter and an all-gather, as in
// topology/traffic.h. Large groups reach the rates of pairs, because their members take turns
// (exchange/in_turn.h). Large shards leave when all members have theirs. If all rounds have the
// same group, they do not wait for the last round.
#pragma once

#include <cstdint>
#include <vector>

#include "starling/plan/profile.h"
#include "starling/topology/graph.h"

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
};

enum class Mixing { cta, atc };

struct Horizon {
  int iterations = 100;
  int warm_up = 20;  // iterations at the start that are not counted
  std::uint64_t seed = 0;
  std::uint64_t most_events = 100'000'000;  // some tens of seconds
};

// The resource in use for longest: a host's interface, or a slow link between hosts
// (Network::links).
struct Busiest {
  double seconds = 0;
  int host = -1;  // -1: nothing leaves a host, or it is not known
  int to = -1;    // the other end of a link from `host`
};

struct Forecast {
  double step = 0;    // mean seconds of an iteration
  double low = 0;     // the workers' single iterations at 10 % ...
  double high = 0;    // ... and at 90 %
  double own = 0;     // a worker's mean computation per step
  double waited = 0;  // a worker's mean wait for exchanges per step
  // The part of `waited` for workers that compute longer (known for all-reduce, and if nothing
  // leaves a host).
  double late = 0;
  Busiest busiest;  // in a step; with all-reduce the seconds alone
};

// Throws UsageError if the parts do not fit together, or after `most_events`.
Forecast simulate(const Network& network, const Work& work, const Schedule& schedule, Mixing mixing,
                  const Horizon& run = {});

// All-reduce in a ring of all workers, by rank: 2 (n - 1) steps of a latency and an n-th of the
// bytes at the slowest rate. If `measured` is not empty, its times replace the formula: linear
// between its sizes and beyond the last two, constant below the first.
double all_reduce_seconds(const Network& network, double bytes,
                          const std::vector<AllReduceTime>& measured = {});
Forecast simulate_all_reduce(const Network& network, const Work& work, const Horizon& run = {},
                             const std::vector<AllReduceTime>& measured = {});

// The share of the interfaces that exchanges with so many peers at once reach: linear between two
// of the shapes, constant beyond them, and 1 without any.
double share_of(const std::vector<Shape>& shapes, int peers);

// The measured network and work of a profile, for the measured workers. `share`: the part of an
// fp32 block that goes to a neighbour.
Network network_of(const Profile& profile);
Work work_of(const Profile& profile, double share = 1);

}  // namespace starling
