// A profile. An accepted one can be printed, and its plan comes to an end.
#include "starling/plan/profile.h"

#include <cmath>

#include "starling/gossip/rates.h"
#include "starling/plan/all_reduce.h"
#include "starling/plan/asynchronous.h"
#include "starling/plan/extrapolate.h"
#include "starling/plan/simulate.h"
#include "starling/topology/schedules.h"
#include "tests/fuzz/target.h"

namespace starling::fuzz {
namespace {

constexpr int kMost = 8;  // workers and blocks of a simulated profile: larger ones are slow
constexpr Horizon kRun{.iterations = 3, .warm_up = 1, .most_events = 20'000};

void plan(const Profile& profile) {
  const Network network = network_of(profile);
  const Work work = work_of(profile);
  for (const char* name : {"ring", "complete"}) {
    const Schedule schedule = make_schedule(name, profile.workers());
    for (const Mixing mixing : {Mixing::ahead, Mixing::inside})
      check(std::isfinite(simulate(network, work, schedule, mixing, kRun).step), "a step of no time");
    simulate_asynchronous(network, work, pair_rates(schedule, 1), kRun);
  }
  const double reduced = simulate_all_reduce(network, work, kRun, all_reduces_of(profile, network)).step;
  check(std::isfinite(reduced), "an all-reduce of no time");
}

}  // namespace

void read(std::string_view bytes) {
  Profile profile;
  if (!accepted([&] { profile = parse_profile(bytes, "p.json"); })) return;
  const std::string printed = print_profile(profile);
  check(print_profile(parse_profile(printed, "printed")) == printed, "is read back as another: " + printed);
  if (!profile.has_network() || !profile.has_compute()) return;
  if (profile.workers() > kMost || profile.workers() < 2 || profile.blocks.size() > kMost) return;
  accepted([&] { plan(profile); });
}

}  // namespace starling::fuzz
