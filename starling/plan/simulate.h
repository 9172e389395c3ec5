// The runtime model: how long a training step takes with many workers, by simulating their blocks, links and interfaces as
// discrete events. It knows no torch and no parameters, only times and bytes.
//
// A worker's own work comes from recorded iterations: for every iteration it draws one of its recorded ones, so that what was
// slow together is slow together, and a worker that was slow stays so.
//
//   CTA         for each block: wait for the exchange that the last step started, update, start the next. A block has a
//               whole iteration to cross the link.
//   ATC         update and send every block, then wait for all of them.
//   all-reduce  each block is reduced when backward has finished it on all workers, one after the other; updates follow.
//
// The network: every host has one interface for all of its workers, which sends and receives at once. From a worker to another
// one blocks go one after the other; all who send or receive by an interface at the same time have an equal part of it, as TCP
// has it, and a flow goes with the lesser of its two ends' parts. A large block goes when both ends have theirs, and no large
// blocks of the last round are on their way at either (exchange/edge.h). Between two workers of one host blocks cross memory. An
// exchange is over when both ends have the other's block and word of it (a latency more). Who exchanges with several at once may
// reach less of the interfaces, or more, than who does with one: Network::shapes. Groups of three and more that take their mean do
// a reduce-scatter and an all-gather, as topology/traffic.h says, and in large groups reach what pairs do, since their members
// take turns (exchange/in_turn.h); large shards go when all members have theirs, and where every round is of the same group do not
// wait for the last one.
#pragma once

#include <cstdint>
#include <vector>

#include "starling/plan/profile.h"
#include "starling/topology/graph.h"

namespace starling {

// Rates in bytes a second, latencies in seconds.
struct Network {
  std::vector<int> host_of;  // of every worker
  std::vector<Host> hosts;   // their rates; names and workers are not looked at
  double latency = 0;
  double inside_latency = 0;
  double inside_rate = 0;
  std::vector<HostLink> links;  // exceptions
  std::vector<Shape> shapes;  // by rising peers; empty: exchanges with many peers reach all of the interfaces
};

struct Work {
  std::vector<double> block_bytes;  // of every block, as it is sent to a neighbour
  std::vector<double> mean_bytes;   // of the mean of a group, and of a block of gradients
  bool groups = true;               // false: groups exchange in pairs
  std::vector<Compute> compute;     // worker i does what compute[i mod size] says
};

enum class Mixing { cta, atc };

struct Horizon {
  int iterations = 100;
  int warm_up = 20;  // of these, not counted
  std::uint64_t seed = 0;
};

// What is in use for longest: a host's interface, or a slow link between hosts (Network::links).
struct Busiest {
  double seconds = 0;
  int host = -1;  // none: nothing leaves a host, or it is not known
  int to = -1;    // of a link from `host`
};

struct Forecast {
  double step = 0;    // seconds of an iteration, in the mean
  double low = 0;     // of the workers' single iterations, those at 10 % ...
  double high = 0;    // ... and at 90 %
  double own = 0;     // of a step: what a worker computes, in the mean
  double waited = 0;  // of a step: what a worker waits for exchanges, in the mean
  double late =
      0;  // of that: for workers that compute longer (known of all-reduce, and where nothing leaves a host)
  Busiest busiest;  // of a step; with all-reduce the seconds alone
};

// Throws UsageError where the parts do not fit together.
Forecast simulate(const Network& network, const Work& work, const Schedule& schedule, Mixing mixing,
                  const Horizon& run = {});

// All-reduce in a ring of all workers, by rank: 2 (n - 1) steps of a latency and an n-th of the bytes at the slowest rate.
// Where `measured` is not empty it is what that says: between its sizes and beyond the last two on a straight line, below the
// first as long as that.
double all_reduce_seconds(const Network& network, double bytes,
                          const std::vector<AllReduceTime>& measured = {});
Forecast simulate_all_reduce(const Network& network, const Work& work, const Horizon& run = {},
                             const std::vector<AllReduceTime>& measured = {});

// What exchanges with so many peers at once reach of the interfaces: between two of the shapes in proportion, beyond them as
// the outermost, without any all.
double share_of(const std::vector<Shape>& shapes, int peers);

// The measured network and work of a profile, for the workers that were measured; `share` is what of a block in fp32 goes to
// a neighbour.
Network network_of(const Profile& profile);
Work work_of(const Profile& profile, double share = 1);

}  // namespace starling
