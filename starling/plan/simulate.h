// The runtime model: the time of a training step with many workers. It simulates their blocks,
// links and interfaces as discrete events. It uses no torch and no parameters, only times and
// bytes.
//
// A worker's own work comes from recorded iterations. For every iteration it draws one of its
// recorded ones, so that correlated times stay together, and a slow worker stays slow.
//
//   ahead       (as CTA) for each block: wait for the exchange that the last step started, update,
//               start the next. A block has a whole iteration to cross the link.
//   inside      (as ATC) update and send every block, then wait for all of them.
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
//
// Local steps. With Work::every = H the simulation has one iteration for H steps: a worker's H - 1
// own steps, then the one that exchanges.
//
// Exact means. After every Work::mean_every steps all workers wait for each other. Then they run a
// period of base-2, with the whole model in each round (exchange/average.h), between two messages
// from all to all. If means come so rarely that none is within the horizon, their time counts in
// equal parts, and the wait for the slowest worker does not count.
#pragma once

#include <cstdint>
#include <vector>

#include "starling/plan/network.h"
#include "starling/topology/graph.h"

namespace starling {

// When a step mixes what it sends: the next step does, or it does so itself.
enum class Mixing { ahead, inside };

// With exact means, rounded up to whole periods of them.
struct Horizon {
  int iterations = 100;  // exchanges, each with the local steps before it
  int warm_up = 20;      // of these at the start, which are not counted
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
  double step = 0;    // mean seconds of a step
  double low = 0;     // the workers' single iterations at 10 %, over their steps ...
  double high = 0;    // ... and at 90 %
  double own = 0;     // a worker's mean computation per step
  double waited = 0;  // a worker's mean wait for exchanges and exact means per step
  double means = 0;   // the part of it in which all take an exact mean
  // The part of `waited` for workers that compute longer (known for all-reduce, and if nothing
  // leaves a host).
  double late = 0;
  Busiest busiest;  // in a step; with all-reduce the seconds alone
};

// The time of one exact mean, from when all workers have come to it.
double mean_seconds(const Network& network, const Work& work);

// Throws UsageError if the parts do not fit together, or after `most_events`.
Forecast simulate(const Network& network, const Work& work, const Schedule& schedule, Mixing mixing,
                  const Horizon& run = {});

}  // namespace starling
