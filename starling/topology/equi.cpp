// EquiStatic and EquiDyn: the speed of their mixing does not depend on n. Song et al.,
// "Communication-Efficient Topologies for Decentralized Learning with O(1) Consensus Rate", NeurIPS
// 2022 (arXiv 2210.07881).
//
// All consist of the basis graphs A(u), u = 1 .. n-1. In A(u) each worker receives from the worker
// u places further on:
//
//   A(u)_i,(i+u mod n) = (n-1)/n,   A(u)_ii = 1/n.   The mean of all A(u) is the averaging matrix.
//
//   d-equistatic-M  W = mean of A(u) over M shifts u, drawn once, each at most once. Directed, M
//                   peers. With all n - 1 shifts it is the complete graph.
//   u-equistatic-M  (W + W^T) / 2 of that: symmetric, at most 2 M peers.
//   od-equidyn      every round draws u:  W = (1 - eta) I + eta A(u). Directed, one peer.
//   ou-equidyn      every round draws u and s. From i = s on, s + 1, .., each free i is paired with
//                   i + u if that worker is free. W = (1 - eta) I + eta A, with A as A(u) but of
//                   the pairs only. Symmetric, one peer.
//
// With od-equidyn each round multiplies the mean squared distance to the mean by (1 - eta)^2 +
// eta^2 (1 - 2/n). The factor is smallest for eta = n / (2 (n - 1)), the value used here. The
// peer's weight is then 1/2, and the factor (n - 2) / (2 (n - 1)), below 1/2 for every n.
//
// Any n; exact only by chance. There is no coordinator: every worker draws the same shifts from the
// same seed. A schedule is periodic: after kEquiPeriod rounds the same shifts come again.
#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "starling/core/random.h"
#include "starling/topology/families.h"
#include "starling/topology/weights.h"

namespace starling {

namespace {

constexpr int kEquiPeriod = 1000;
enum Draw : std::uint64_t { of_static = 1, of_shift, of_start };

int drawn(Draw what, int seed, int t, int below) {
  return static_cast<int>(
      random_bits({what, static_cast<std::uint64_t>(seed), static_cast<std::uint64_t>(t)}) %
      static_cast<std::uint64_t>(below));
}

// M of the shifts 1 .. n-1, each at most once.
std::vector<int> shifts(int n, int M) {
  std::vector<int> all(n - 1);
  std::iota(all.begin(), all.end(), 1);
  M = std::min(M, n - 1);
  for (int k = 0; k < M; ++k) std::swap(all[k], all[k + drawn(of_static, 0, k, n - 1 - k)]);
  all.resize(M);
  return all;
}

Rounds d_equistatic(int n, int M) {
  if (M >= n - 1) return complete(n);
  const std::vector<int> us = shifts(n, M);
  Graph graph(n);
  const double weight = (n - 1.0) / n / static_cast<double>(us.size());
  for (int i = 0; i < n; ++i) {
    for (int u : us) add_arc(graph, i, (i + u) % n, weight);
  }
  return {graph};
}

Rounds u_equistatic(int n, int M) {
  if (M >= n - 1) return complete(n);
  const Graph W = d_equistatic(n, M)[0];
  Graph graph(n);
  for (int i = 0; i < n; ++i) {
    std::set<int> peers;
    for (const Neighbour& j : W.neighbours[i]) peers.insert(j.rank);
    for (int j = 0; j < n; ++j) {
      if (W.weight(j, i) > 0) peers.insert(j);
    }
    for (int j : peers) add_arc(graph, i, j, (W.weight(i, j) + W.weight(j, i)) / 2);
  }
  return {graph};
}

Rounds od_equidyn(int n, int seed) {
  if (n <= 2) return complete(n);
  Rounds rounds;
  for (int t = 0; t < kEquiPeriod; ++t) {
    const int u = 1 + drawn(of_shift, seed, t, n - 1);
    Graph& graph = rounds.emplace_back(n);
    for (int i = 0; i < n; ++i) add_arc(graph, i, (i + u) % n, 0.5);
  }
  return rounds;
}

Rounds ou_equidyn(int n, int seed) {
  if (n <= 2) return complete(n);
  Rounds rounds;
  for (int t = 0; t < kEquiPeriod; ++t) {
    const int u = 1 + drawn(of_shift, seed, t, n - 1), s = drawn(of_start, seed, t, n);
    Graph& graph = rounds.emplace_back(n);
    for (int k = 0; k < n; ++k) {
      const int i = (s + k) % n, j = (i + u) % n;
      if (graph.neighbours[i].empty() && graph.neighbours[j].empty()) add_edge(graph, i, j, 0.5);
    }
  }
  return rounds;
}

}  // namespace

Families families_equi() {
  return {
      {
          .name = "d-equistatic-M",
          .example = "d-equistatic-3",
          .summary = "each worker receives from the workers at M random distances: M peers, any n; not "
                     "symmetric",
          .rounds = [](const ScheduleRequest& asked) { return d_equistatic(asked.n, asked.number); },
          .least = 1,
      },
      {
          .name = "u-equistatic-M",
          .example = "u-equistatic-2",
          .summary = "each worker mixes with the workers at M random distances on both sides: at most 2 M "
                     "peers, any n",
          .rounds = [](const ScheduleRequest& asked) { return u_equistatic(asked.n, asked.number); },
          .least = 1,
      },
      {
          .name = "od-equidyn",
          .summary = "each worker takes half from the worker at a random distance, the same for all: 1 "
                     "peer, any n; not symmetric",
          .rounds = [](const ScheduleRequest& asked) { return od_equidyn(asked.n, 0); },
      },
      {
          .name = "od-equidyn-SEED",
          .example = "od-equidyn-7",
          .summary = "the same with other distances",
          .rounds = [](const ScheduleRequest& asked) { return od_equidyn(asked.n, asked.number); },
      },
      {
          .name = "ou-equidyn",
          .summary = "pairs at a random distance, the same on all workers, 1/2 each: 1 peer, any n (some "
                     "idle)",
          .rounds = [](const ScheduleRequest& asked) { return ou_equidyn(asked.n, 0); },
      },
      {
          .name = "ou-equidyn-SEED",
          .example = "ou-equidyn-7",
          .summary = "the same with other distances",
          .rounds = [](const ScheduleRequest& asked) { return ou_equidyn(asked.n, asked.number); },
      }};
}

}  // namespace starling
