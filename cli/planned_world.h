// The results of `starling plan` for one number of workers: the steps of all schedules and wires,
// the best of them, and alternatives.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "starling/kernels/wire.h"
#include "starling/optim/optimizer_options.h"
#include "starling/plan/asynchronous.h"
#include "starling/plan/choose.h"
#include "starling/plan/failures.h"
#include "starling/plan/profile.h"
#include "starling/plan/simulate.h"

namespace starling::cli {

struct PlannedWorld {
  int n = 0;  // workers
  Network network;
  int workers_per_host = 1;
  bool measured = false;                   // otherwise extrapolated
  std::vector<AllReduceTime> all_reduces;  // as measured, or extrapolated

  Forecast all_reduce;
  Options planned{};  // the scheme with its local steps and means
  Mixing mixing = Mixing::ahead;
  std::vector<Candidate> rows;
  std::size_t best = 0;  // the recommended one of `rows`

  // Changes to the best row:
  std::optional<Forecast> inside;                     // Mixing::inside, if the scheme is the default
  std::map<Wire, AsynchronousForecast> asynchronous;  // pairs on its graph, at rate 1; for plain `planned`
  // By Options::block_bytes; only sizes that give different blocks. Empty if the scheme does not
  // divide matrices.
  std::map<std::int64_t, Forecast> sizes;
  std::int64_t block_bytes = 0;        // the largest of these sizes that is as good as any
  std::optional<Forecast> one_host;    // the fastest host alone, for as many samples
  std::vector<std::string> assumed{};  // sentences about data that the profile lacks
  Failures failures{};
  double lost_to_restarts = 0, lost_to_absence = 0;

  const Candidate& recommended() const { return rows[best]; }
};

const std::vector<Wire>& planned_wires();

struct Question {
  Options options{};                     // scheme, one_in, every and mean_every
  std::vector<std::string> schedules{};  // empty: planned_schedules() that the scheme takes
  std::vector<Wire> wires{};             // empty: planned_wires() that the scheme takes
  Horizon run{};
  Failures failures{};
};

// The results for the measured cluster, or for n workers on its hosts (plan/extrapolate.h, which
// also defines the UsageErrors). Throws UsageError if one of the schedules does not exist for n, if
// the scheme refuses one of the schedules or wires that are named, and if it has no exchange in its
// steps.
PlannedWorld planned_world(const Profile& profile, int n, const Question& question);

// A value for the mean step, and the two between which 80 % of single steps lie.
struct Banded {
  double mean, low, high;
};
Banded efficiency(const Forecast& outcome);  // a worker's own computation as a part of its step
Banded speed_up(const Forecast& outcome, const PlannedWorld& world);  // over all-reduce's mean step
// The same as text: one number, or two if they differ after rounding.
std::string efficiency_text(const Forecast& outcome);
std::string speed_up_text(const Forecast& outcome, const PlannedWorld& world);
std::string bottleneck(const Forecast& outcome, const Network& network, Mixing mixing = Mixing::ahead);
bool all_reduce_is_as_good(const PlannedWorld& world);
std::string recommended_scheme(const PlannedWorld& world);   // one that mixes inside if it takes no longer
std::vector<std::string> advice(const PlannedWorld& world);  // sentences

// Failures::rate, from the number of failing hosts of 1000 per day.
double failures_a_second(double of_1000_in_a_day);

}  // namespace starling::cli
