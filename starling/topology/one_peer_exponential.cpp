// one-peer-exponential and its directed form. Ying et al., "Exponential Graph is Provably Efficient
// for Decentralized Deep Training", NeurIPS 2021 (arXiv 2110.13363). One peer a round, at distances
// 1, 2, 4, ...
//
//   symmetric   round j: i mixes with i XOR 2^j, half and half
//               n = 2^r: exact after r rounds
//   directed    round j: i takes half of (i + 2^j) mod n, 2^j <= n - 1
//               any n; exact after r rounds for n = 2^r
//
// The symmetric form visits a hypercube dimension by dimension. The directed W is doubly stochastic
// but not symmetric: an exchange that fails at one end moves the mean. Therefore it must be
// requested by name.
#include "starling/topology/families.h"
#include "starling/topology/sizes.h"
#include "starling/topology/weights.h"

namespace starling {

namespace {

Rounds one_peer_exponential(int n) {
  need_power_of_two("one-peer-exponential", n);
  Rounds rounds;
  for (int distance = 1; distance < n; distance *= 2) {
    Graph& graph = rounds.emplace_back(n);
    for (int i = 0; i < n; ++i) add_arc(graph, i, i ^ distance, 0.5);
  }
  return rounds;
}

Rounds one_peer_exponential_directed(int n) {
  Rounds rounds;
  for (int distance = 1; distance < n; distance *= 2) {
    Graph& graph = rounds.emplace_back(n);
    for (int i = 0; i < n; ++i) add_arc(graph, i, (i + distance) % n, 0.5);
  }
  return rounds;
}

}  // namespace

Families families_one_peer_exponential() {
  return {
      {
          .name = "one-peer-exponential",
          .summary = "pairs i, i XOR 2^j, 1/2 each: 1 peer, exact after log2 n rounds; n = 2^r",
          .rounds = [](const ScheduleRequest& asked) { return one_peer_exponential(asked.n); },
      },
      {
          .name = "one-peer-exponential-directed",
          .summary = "worker i takes half from i + 2^j: 1 peer, any n; not symmetric, so a failed exchange "
                     "moves the mean",
          .rounds = [](const ScheduleRequest& asked) { return one_peer_exponential_directed(asked.n); },
      }};
}

}  // namespace starling
