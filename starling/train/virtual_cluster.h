// A training run on a virtual cluster: `starling simulate`. The workers are threads in virtual
// time. Models, gradients, the optimizer and everything below it are real; only durations are not:
// gradients and the network take the time that the cluster defines. So the same seed gives the same
// times on any machine, and with the same torch on the same kind of machine the same bits.
//
// One worker runs at a time, so n workers cost this machine n times the gradients of one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "starling/plan/simulate.h"
#include "starling/train/metrics.h"
#include "starling/train/recipe.h"

namespace starling {

// The duration of a gradient, from the batch to the end of backward(), and of the update, in
// seconds.
struct GradientTime {
  double before = 0;    // until the last backward() begins; with accumulation there are several
  double backward = 0;  // divided among the parameters by their size
  double update = 0;
};

struct VirtualCluster {
  Network network;
  // The duration of a worker's k-th gradient.
  std::function<GradientTime(int worker, std::int64_t k)> gradient;
  std::vector<AllReduceTime> all_reduce{};  // measured; empty: by the network (plan/simulate.h)
  // Coefficient of variation of the time that a chunk takes to cross a link and to arrive, and of
  // each step of an all-reduce's ring: lognormal, with the mean kept.
  double link_cv = 0;

  int workers() const { return static_cast<int>(network.host_of.size()); }
};

// n workers, each on its own host, with interfaces of `rate` bytes per second each way. Worker 0's
// interface is `slow_link` times slower.
Network even_network(int n, double rate, double latency, double slow_link = 1);

// A gradient takes `mean` seconds, a third of each pass before backward(). Lognormal with the
// coefficient of variation `cv`, the mean kept; `straggler` times as long on worker 0.
std::function<GradientTime(int, std::int64_t)> even_compute(double mean, double cv, double straggler,
                                                            std::int64_t passes, std::uint64_t seed);

// n workers on the measured network (plan/extrapolate.h), without its shapes: a chunk does not know
// how many other links are in use. Each worker draws from its own recorded iterations; beyond the
// measured workers, worker i draws from those of worker i mod their number.
VirtualCluster cluster_of(const Profile& profile, int n, std::uint64_t seed);

// All workers at one moment.
struct Look {
  double seconds = 0;           // virtual
  std::uint64_t gradients = 0;  // of all workers
  double epochs = 0;
  std::uint64_t bytes_sent = 0;  // by all workers
  double loss = 0;               // mean of the gradients since the last look
  double loss_least = 0;         // of the workers' own means
  double loss_most = 0;
  double lr = 0;                  // mean of the workers
  double waiting_share = 0;       // of the time since the last look, for neighbours: mean
  double test_loss = 0;           // of the average model, on the test set
  double score = 0;               // of the average model, on the test set
  double consensus_distance = 0;  // RMS distance of the workers' parameters to their mean
  // Asynchronous schemes, since the start: averagings per gradient of a worker, in the mean, and
  // the largest number of gradients of a worker between two averagings on one edge.
  struct Gossip {
    double rate = 0;
    std::uint64_t longest_gap = 0;
  };
  std::optional<Gossip> gossip{};
};

// Trains for the recipe's number of steps: each worker, or with run.ends = "together" all workers
// in the mean, of which a slow one then makes fewer. Looks every `look_every` virtual seconds and
// at the end; a look takes no virtual time. Call check_simulated() and check_machine() before.
// Throws UsageError if the data is missing or damaged.
Summary train(const Recipe& recipe, const VirtualCluster& cluster, double look_every,
              const std::function<void(const Look&)>& observe);

// Throws what check_settings() throws, and UsageError if the recipe asks for what only real
// processes have (checkpoints, a timeline, event files), and for parameters other than fp32.
void check_simulated(const Recipe& recipe, const VirtualCluster& cluster, double look_every);

}  // namespace starling
