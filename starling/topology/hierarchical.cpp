// hierarchical:SCHEDULE: the exact mean inside every node, and any schedule between the nodes, in
// turn.
//
//   m nodes of L workers each, W_r round r of SCHEDULE over m nodes (r = 0 .. R-1); 2 R rounds:
//     round 2r      every node takes the mean of its L workers
//     round 2r + 1  the workers of equal place in their nodes mix as W_r says of the nodes
//
// After two rounds all workers of a node hold the same value: W_r of the nodes' means. If SCHEDULE
// is exact after R rounds, this schedule is exact after 2 R. The network carries one exchange per
// worker in every second round. One node (m = 1) takes its mean; nodes of one worker (L = 1) are
// SCHEDULE itself.
#include "starling/topology/families.h"
#include "starling/topology/schedules.h"
#include "starling/topology/sizes.h"
#include "starling/topology/weights.h"

namespace starling {

Rounds hierarchical(int n, int L, const std::string& between) {
  const int m = whole_nodes("hierarchical:" + between, n, L);
  const Schedule nodes = make_schedule(between, m);
  if (L == 1) return nodes.rounds;
  Graph inside(n);
  for (int a = 0; a < m; ++a) {
    std::vector<int> workers;
    for (int local = 0; local < L; ++local) workers.push_back(a * L + local);
    add_group(inside, workers);
  }
  if (m == 1) return {inside};
  Rounds rounds;
  for (Graph& across : nodes.for_each_place(L).rounds) {
    rounds.push_back(inside);
    rounds.push_back(std::move(across));
  }
  return rounds;
}

Families families_hierarchical() {
  return {{
      .name = "hierarchical:SCHEDULE",
      .example = "hierarchical:base-2",
      .summary = "the mean inside every node and SCHEDULE between nodes in turn: exact after twice "
                 "SCHEDULE's rounds; whole nodes",
      .rounds =
          [](const ScheduleRequest& asked) {
            return hierarchical(asked.n, asked.workers_per_node, asked.schedule);
          },
  }};
}

}  // namespace starling
