// A training run on a cluster that one does not have: `starling simulate`. The workers are threads in virtual time with real models,
// real gradients, the real optimizer and all that is below it; only what takes time is not real: the gradient's computation and
// the network take as long as the cluster says. So the same seed gives the same times and, with the same torch on the same kind of
// machine, the same bits, however busy it is.
//
// One worker runs at a time: n workers cost this machine n times the gradients of one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "starling/plan/simulate.h"
#include "starling/train/recipe.h"

namespace starling {

// What a gradient takes: from the batch to the end of backward(), and the update.
struct GradientTime {
  double before =
      0;  // seconds until the last backward() begins (there are several where gradients are accumulated)
  double backward = 0;  // spread over the parameters by their size
  double update = 0;
};

struct VirtualCluster {
  Network network;
  // Of a worker's k-th gradient.
  std::function<GradientTime(int worker, std::int64_t k)> gradient;
  std::vector<AllReduceTime> all_reduce{};  // measured; empty: by the network (plan/simulate.h)
  // Every chunk takes so long to cross, and to arrive, as a lognormal with this coefficient of variation draws, the mean kept; and
  // every step of an all-reduce's ring.
  double link_cv = 0;

  int workers() const { return static_cast<int>(network.host_of.size()); }
};

// n workers, each on a host of its own, whose interface carries so many bytes a second each way; worker 0's `slow_link` times fewer.
Network even_network(int n, double rate, double latency, double slow_link = 1);

// A gradient takes `mean` seconds, of each of its passes a third before backward(); lognormal with this coefficient of variation,
// the mean kept; `straggler` times as long on worker 0.
std::function<GradientTime(int, std::int64_t)> even_compute(double mean, double cv, double straggler,
                                                            std::int64_t passes, std::uint64_t seed);

// n workers on the measured network (plan/extrapolate.h), but for its shapes: who crosses a link does not know how many others are
// used with it. Each worker draws its own recorded iterations; of more workers than were measured, worker i those of
// worker i mod their number.
VirtualCluster cluster_of(const Profile& profile, int n, std::uint64_t seed);

// All workers at one moment.
struct Look {
  double seconds = 0;           // virtual
  std::uint64_t gradients = 0;  // of all workers
  double epochs = 0;
  std::uint64_t bytes_sent = 0;   // by all workers
  double loss = 0;                // of the gradients since the last look, in the mean
  double test_loss = 0;           // of the average model, on the test set
  double score = 0;               // of the average model, on the test set
  double consensus_distance = 0;  // RMS distance of the workers' parameters to their mean
  // Of asynchronous schemes, since the start: averagings of a worker for each of its gradients, in the mean, and most gradients that
  // a worker has made between two averagings on one edge.
  struct Gossip {
    double rate = 0;
    std::uint64_t stalest = 0;
  };
  std::optional<Gossip> gossip{};
};

// Trains for as many steps as the recipe says: each worker, or with run.ends = "together" all of them, of which a slow
// one then makes fewer. Looks every so many virtual seconds, and at the end; that takes no time. Throws UsageError
// where the recipe asks for what only real processes have: checkpoints, a timeline, event files; and for parameters
// other than fp32.
void train(const Recipe& recipe, const VirtualCluster& cluster, double look_every,
           const std::function<void(const Look&)>& observe);

}  // namespace starling
