// Simple Base-(k+1): exact averaging in finitely many rounds for every n, at most k peers a round.
// Takezawa et al., NeurIPS 2023 (arXiv 2305.11420), algorithm 2.
//
//   If n has only prime factors <= k + 1: the hyper-hypercube HHC(n, k). Otherwise, with n in base
//   k + 1,
//
//     n = Sum_l a_l (k+1)^(p_l),   p_1 > p_2 > ..,   1 <= a_l <= k,
//
//   the workers in order form V_1 .. V_q, and V_l consists of a_l blocks of (k+1)^(p_l) workers.
//
//   Phase 1, |HHC(V_1)| rounds. Every V_l runs HHC(V_l), repeatedly if it is shorter. Then each
//     worker of V_l holds the mean of V_l.
//   Phase 2, one round for each s = 1 .. q-1. R = |V_s| + .. + |V_q|. Every worker i of
//     V_(s+1) .. V_q takes one worker j from each block of V_s, each j once:
//     W_ij = W_ji = |V_s| / (R a_s).  Then each block of V_s has the global mean as its mean, and
//     so have V_(s+1) .. V_q together. The workers of V_s that nobody takes average in groups of
//     k + 1, which changes nothing where they are equal, and brings noisy ones together.
//   Phase 3, for V_l from the round after s = l on (V_q: after s = q-1). Each block runs HHC(block)
//     repeatedly, or V_l as a whole if it is smaller than k + 1. It ends when the blocks of V_1 are
//     done, after p_1 rounds: V_l starts l - 1 rounds later, but needs as many rounds less, since
//     p_l <= p_1 - (l - 1).
//
// Length <= 2 log_(k+1) n + 2.
#include <algorithm>
#include <utility>

#include "starling/topology/families.h"
#include "starling/topology/weights.h"

namespace starling {

namespace {

// Round `step` of HHC over `size` workers from `first` on. The rounds repeat.
void add_hypercube_round(Graph& graph, int first, int size, int k, int step) {
  if (size == 1) return;
  const std::vector<Groups> rounds = *hyper_hypercube(size, k);
  for (std::vector<int> group : rounds[step % rounds.size()]) {
    for (int& worker : group) worker += first;
    add_group(graph, group);
  }
}

struct Part {  // V_l
  int first;   // its workers are first .. first + blocks * block - 1
  int blocks;  // a_l
  int block;   // (k+1)^(p_l)
  int size() const { return blocks * block; }
};

std::vector<Part> parts_of(int n, int k) {
  long long power = 1;
  while (power * (k + 1) <= n) power *= k + 1;
  std::vector<Part> parts;
  for (int first = 0; first < n; power /= k + 1) {
    const int digit = static_cast<int>((n - first) / power);
    if (digit == 0) continue;
    parts.push_back({first, digit, static_cast<int>(power)});
    first += parts.back().size();
  }
  return parts;
}

// Phase 2: each worker behind `part` takes one worker from each of its blocks. The rest of them
// average with each other, as in the authors' code (`inner_edges` in simple_base_graph.py,
// github.com/yukiTakezawa/BaseGraph @1374120).
void add_meetings(Graph& graph, const Part& part, int k) {
  const int n = graph.workers();
  const int behind = part.first + part.size();
  const double weight = static_cast<double>(part.size()) / (n - part.first) / part.blocks;
  for (int i = behind; i < n; ++i) {
    for (int b = 0; b < part.blocks; ++b) {
      add_edge(graph, i, part.first + b * part.block + (i - behind), weight);
    }
  }
  std::vector<int> group;
  for (int b = 0; b < part.blocks; ++b) {
    for (int position = n - behind; position < part.block; ++position) {
      group.push_back(part.first + b * part.block + position);
      if (std::ssize(group) == k + 1) add_group(graph, std::exchange(group, {}));
    }
  }
  if (group.size() > 1) add_group(graph, group);
}

// Phase 3.
void add_block_rounds(Graph& graph, const Part& part, int k, int step) {
  if (part.size() < k + 1) return add_hypercube_round(graph, part.first, part.size(), k, step);
  for (int b = 0; b < part.blocks; ++b) {
    add_hypercube_round(graph, part.first + b * part.block, part.block, k, step);
  }
}

}  // namespace

Rounds simple_base(int n, int k) {
  if (hyper_hypercube(n, k)) return hyper_hypercube_rounds(n, k);

  const std::vector<Part> parts = parts_of(n, k);
  const int q = static_cast<int>(parts.size());
  const int phase1 = static_cast<int>(hyper_hypercube(parts[0].size(), k)->size());
  const int phase3 = static_cast<int>(hyper_hypercube(parts[0].block, k)->size());

  Rounds rounds;
  for (int step = 0; step < phase1; ++step) {
    Graph& graph = rounds.emplace_back(n);
    for (const Part& part : parts) add_hypercube_round(graph, part.first, part.size(), k, step);
  }
  for (int s = 1; s <= 1 + phase3; ++s) {
    Graph& graph = rounds.emplace_back(n);
    if (s < q) add_meetings(graph, parts[s - 1], k);
    for (int l = 1; l <= q; ++l) {
      const int met = std::min(l, q - 1);  // the last meeting of V_l
      if (s > met) add_block_rounds(graph, parts[l - 1], k, s - met - 1);
    }
  }
  return rounds;
}

Families families_simple_base() {
  return {{
      .name = "simple-base-K",
      .example = "simple-base-2",
      .summary = "the simpler form of base-K: the same guarantees, more rounds for some n",
      .rounds = [](const ScheduleRequest& asked) { return simple_base(asked.n, asked.number - 1); },
      .least = 2,
  }};
}

}  // namespace starling
