// What `starling plan` says of one number of workers: the steps of all schedules and wires, the best of them, and what else could
// be done.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "starling/kernels/wire.h"
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
  bool measured = false;                   // else extrapolated
  std::vector<AllReduceTime> all_reduces;  // as measured, or extrapolated

  Forecast all_reduce;
  std::vector<Candidate> rows;
  std::size_t best = 0;  // the recommended one of `rows`

  // In place of the best row:
  Forecast atc;                                       // the other scheme
  std::map<Wire, AsynchronousForecast> asynchronous;  // pairs on its graph, at rate 1
  std::map<std::int64_t, Forecast> sizes;             // by Options::block_bytes; those alone that differ
  std::int64_t block_bytes = 0;                       // the largest of these that is as good as any
  std::optional<Forecast> one_host;                   // the fastest host alone, for as many samples
  std::vector<std::string> assumed{};                 // sentences, of what the profile does not hold
  Failures failures{};
  double lost_to_restarts = 0, lost_to_absence = 0;

  const Candidate& recommended() const { return rows[best]; }
};

struct Question {
  std::vector<std::string> schedules{};  // none: planned_schedules()
  std::vector<Wire> wires{};             // one at least
  Horizon run{};
  Failures failures{};
};

// Of the measured cluster, or of n workers on its hosts (plan/extrapolate.h), and throws UsageError as that; also where one of the
// schedules does not exist for so many.
PlannedWorld planned_world(const Profile& profile, int n, const Question& question);

// Of the mean step, and of those between which 80 % of single steps lie.
struct Banded {
  double mean, low, high;
};
Banded efficiency(const Forecast& outcome);  // the part of a step that a worker computes
Banded speed_up(const Forecast& outcome, const PlannedWorld& world);  // over all-reduce's mean step
std::string bottleneck(const Forecast& outcome, const Network& network, Mixing mixing = Mixing::cta);
bool all_reduce_is_as_good(const PlannedWorld& world);
Mixing recommended_scheme(const PlannedWorld& world);        // atc where it takes no longer
std::vector<std::string> advice(const PlannedWorld& world);  // sentences

// Failures::rate, from failing hosts of 1000 in a day.
double failures_a_second(double of_1000_in_a_day);

}  // namespace starling::cli
