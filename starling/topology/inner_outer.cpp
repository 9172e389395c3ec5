// inner-outer:SCHEDULE: one peer a round, and one worker per node at a time uses the network.
// Machine-aware one-peer graphs, as in BlueFog (Ying et al., 2021, arXiv 2111.04287: "inner-outer
// ring" and "inner-outer expo2"), for any schedule of one peer.
//
//   m nodes of L workers each; V_s: round s of SCHEDULE over m nodes, U_s: over L - 1 workers.
//   Round t, with the place p = t mod L and s = floor(t / L):
//     the workers of place p in their nodes mix with each other as V_s says;
//     the other L - 1 workers of each node, in order, mix as U_s says.
//
// The counter s advances only when each place has been outside once, so that each place meets all
// pairs of each V_s. (BlueFog takes both from t: `index` in GetInnerOuterExp2DynamicSendRecvRanks,
// bluefog/common/topology_util.py @022307f. Place p then goes out at t = p mod L alone, and meets a
// part of the rounds if L and their number have a common factor.) With L = 2 the worker inside
// would be alone, and its node would stay in two halves for ever. For L = 2 the schedule is
// therefore hierarchical:SCHEDULE, which has one peer too. Any SCHEDULE of one peer works; not
// exact in general.
#include <numeric>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/topology/families.h"
#include "starling/topology/schedules.h"
#include "starling/topology/sizes.h"
#include "starling/topology/weights.h"

namespace starling {

namespace {

constexpr std::size_t kMostRounds = 10'000;

Rounds inner_outer(int n, int L, const std::string& name) {
  const int m = whole_nodes("inner-outer:" + name, n, L);
  if (m == 1) return make_schedule(name, L).rounds;
  if (L <= 2) return hierarchical(n, L, name);
  const Rounds V = make_schedule(name, m).rounds;
  const Rounds U = make_schedule(name, L - 1).rounds;
  const std::size_t steps = std::lcm(V.size(), U.size());
  if (steps * static_cast<std::size_t>(L) > kMostRounds) {
    throw UsageError(fmt::format(
        "schedule inner-outer:{} would have a period of {} rounds for {} workers, at most {} are allowed",
        name, steps * static_cast<std::size_t>(L), n, kMostRounds));
  }
  Rounds rounds;
  for (std::size_t s = 0; s < steps; ++s) {
    const Graph& outer = V[s % V.size()];
    const Graph& inner = U[s % U.size()];
    for (int p = 0; p < L; ++p) {
      Graph& graph = rounds.emplace_back(n);
      const auto place = [p](int k) { return k < p ? k : k + 1; };  // of the k-th worker inside
      for (int a = 0; a < m; ++a) {
        for (const auto& [b, weight] : outer.neighbours[a]) add_arc(graph, a * L + p, b * L + p, weight);
        for (int k = 0; k < L - 1; ++k) {
          for (const auto& [j, weight] : inner.neighbours[k])
            add_arc(graph, a * L + place(k), a * L + place(j), weight);
        }
      }
    }
  }
  return rounds;
}

}  // namespace

Families families_inner_outer() {
  return {{
      .name = "inner-outer:SCHEDULE",
      .example = "inner-outer:base-2",
      .summary = "one worker of each node at a time between the nodes, the others inside, by SCHEDULE; "
                 "whole nodes",
      .rounds =
          [](const ScheduleRequest& asked) {
            return inner_outer(asked.n, asked.workers_per_node, asked.schedule);
          },
  }};
}

}  // namespace starling
