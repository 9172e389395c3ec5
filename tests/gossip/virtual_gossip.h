// Workers that gossip in virtual time, and what they hold in the end.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "starling/gossip/gossip.h"
#include "starling/topology/schedules.h"
#include "tests/exchange/one_thread.h"
#include "tests/gossip/held.h"
#include "tests/virtual_workers.h"

namespace starling {

using namespace std::chrono_literals;

constexpr std::size_t kSize = 64;  // values of a worker
constexpr Duration kGradient = 100ms;

// The gossip of one of the workers, which has met the others.
struct Gossiper {
  Gossiper(
      VirtualHub& cluster, int rank, const GossipOptions& options,
      std::vector<std::vector<float>> blocks = {std::vector<float>(kSize)},
      Log log = [](Level, const std::string&) {})
      : gossip(cluster.hub.endpoint(rank), options, on_host(std::move(blocks), *options.algorithm),
               std::move(log)) {
    gossip.meet();
  }
  Gossip* operator->() { return &gossip; }
  Gossip gossip;
};

using Values = std::vector<std::vector<float>>;  // by worker

inline double distance(const Values& x) { return rms_to_mean({x.begin(), x.end()}); }

struct Begin {
  float common = 0;  // deviation of the common part of all workers
  float own = 1;     // deviation of each worker's own part
  float moves = 0;   // per gradient
  // Sometimes a connection breaks in the middle of an averaging.
  bool breaks = false;
  // Worker 1's transport stands still for 1.5 of every 3 seconds: averagings in flight to it are
  // given up, and it takes them later.
  bool stalls = false;
  Duration latency{};     // of a frame
  double rate = kAtOnce;  // of a link, in bytes per second
};

struct End {
  Values x;
  // Drift per value: of the sum of all w x, or with momentum of all (x + x~) / 2, relative to the
  // gradients' additions.
  double drift = 0;
  double mass = 0;     // the sum of all weights
  double least = 1;    // least weight at any time
  double tracked = 0;  // drift of the sum of all y relative to its additions
  std::vector<GossipStatistics> statistics;
  int said_slow = 0;  // warnings that the asked rate is not reached

  // The sum of a count over all edges.
  std::uint64_t of_edges(std::uint64_t GossipStatistics::Neighbour::* count) const {
    std::uint64_t sum = 0;
    for (const GossipStatistics& mine : statistics) {
      for (const auto& edge : mine.neighbours) sum += edge.*count;
    }
    return sum;
  }
};

// The result after so many gradients. The workers begin at x = x~.
inline End gossiped(GossipOptions options, const Begin& begin, int gradients) {
  const int n = options.rates.workers();
  options.seed = 3;
  VirtualHub cluster(n, begin.rate, begin.latency);
  End end{.x = Values(static_cast<std::size_t>(n)),
          .statistics = std::vector<GossipStatistics>(static_cast<std::size_t>(n))};
  double sum = 0, sum_y = 0;  // of one worker at a time
  std::atomic<int> said_slow = 0;
  const Log log = [&](Level, const std::string& said) {
    said_slow += said.find("were asked for") != said.npos;
  };
  cluster.run([&](int rank) {
    std::mt19937_64 same(99), random(static_cast<std::uint64_t>(rank));
    std::normal_distribution<float> normal, common;
    std::vector<float> mine(kSize);
    for (float& value : mine) {
      value = begin.common * common(same) + begin.own * normal(random);
      sum -= value;
    }
    Gossiper gossip(cluster, rank, options, {mine}, log);
    for (int k = 0; k < gradients; ++k) {
      cluster.time->sleep(kGradient);
      const int other = (rank + 1) % n;
      if (begin.breaks) k % 5 == 3 ? cluster.hub.sever(rank, other) : cluster.hub.mend(rank, other);
      if (begin.stalls && rank == 0) k % 30 >= 15 ? cluster.hub.pause(1) : cluster.hub.resume(1);
      gossip->access(0, [&](const Held& held) { end.least = std::min(end.least, held.weight); });
      if (begin.moves != 0) {
        gossip->gradient(0, [&](const Held& held) {
          const Added added = add_gradient(held, [&](std::size_t) { return begin.moves * normal(random); });
          sum -= held.weight * added.x, sum_y -= added.y;
        });
      }
      gossip->stepped();
    }
    if (begin.breaks || begin.stalls) {
      if (begin.breaks) cluster.hub.mend(rank, (rank + 1) % n);
      cluster.time->sleep(3s);  // workers in doubt ask
    }
    gossip->pause();
    gossip->gradient(0, [&](const Held& held) {
      sum += held.weight * kept_sum(held);
      end.x[static_cast<std::size_t>(rank)].assign(held.x.begin(), held.x.end());
      end.mass += held.weight;
      for (const float y : held.y) sum_y += y;
    });
    end.statistics[static_cast<std::size_t>(rank)] = gossip->statistics();
    cluster.time->sleep(1s);  // the others may not have paused yet
  });
  end.said_slow = said_slow;
  end.drift = std::abs(sum) / (n * static_cast<double>(kSize));
  end.tracked = std::abs(sum_y) / (n * static_cast<double>(kSize));
  return end;
}

inline GossipOptions options_of(const std::string& topology, int n, bool momentum, Wire wire = Wire::fp32) {
  GossipOptions options{.rates = pair_rates(make_schedule(topology, n), 1), .wire = wire};
  if (momentum) options.algorithm = pair_averaging(a2cid2_of(options.rates));
  return options;
}

}  // namespace starling
