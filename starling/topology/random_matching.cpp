// random-matching: random pairs in every round, half and half. Boyd et al., "Randomized gossip
// algorithms", IEEE Transactions on Information Theory 52(6), 2006, with a whole matching at once.
// There is no coordinator: every worker draws the same pairs from the same seed.
//
//   round t: shuffle 0 .. n-1 with keys (seed, t); the workers at places 0 and 1, 2 and 3, ... are
//            pairs. W_ij = 1/2
//
// Any n; if n is odd, one worker idles. In expectation each round about halves the squared distance
// to the mean, whatever n. A schedule is periodic: after kPeriod rounds the same pairs come again.
// In that time each worker meets every other worker, and holds a connection to it.
#include <numeric>
#include <utility>

#include "starling/core/random.h"
#include "starling/topology/families.h"
#include "starling/topology/weights.h"

namespace starling {

namespace {

constexpr int kPeriod = 1000;

Rounds random_matching(int n, int seed) {
  if (n <= 2) return complete(n);
  Rounds rounds;
  std::vector<int> order(n);
  for (int t = 0; t < kPeriod; ++t) {
    std::iota(order.begin(), order.end(), 0);
    for (int i = n - 1; i > 0; --i) {  // Fisher & Yates
      const std::uint64_t bits = random_bits(
          {static_cast<std::uint64_t>(seed), static_cast<std::uint64_t>(t), static_cast<std::uint64_t>(i)});
      std::swap(order[i], order[bits % static_cast<std::uint64_t>(i + 1)]);
    }
    Graph& graph = rounds.emplace_back(n);
    for (int place = 0; place + 1 < n; place += 2) add_edge(graph, order[place], order[place + 1], 0.5);
  }
  return rounds;
}

}  // namespace

Families families_random_matching() {
  return {
      {
          .name = "random-matching",
          .summary = "random pairs, the same on all workers, 1/2 each: 1 peer, any n (one idles if n is odd)",
          .rounds = [](const ScheduleRequest& asked) { return random_matching(asked.n, 0); },
      },
      {
          .name = "random-matching-SEED",
          .example = "random-matching-7",
          .summary = "the same with other pairs",
          .rounds = [](const ScheduleRequest& asked) { return random_matching(asked.n, asked.number); },
      }};
}

}  // namespace starling
