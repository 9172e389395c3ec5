// CHOCO-SGD: Koloskova, Stich & Jaggi 2019 (arXiv 1902.00340); for deep learning Koloskova et al. 2020 (arXiv 1907.09356).
//
//   h_i = keep x_i - lr u(g_i)                          the local step of any rule; keep: AdamW's weight decay, else 1
//   x^_i <- x^_i + C(h_i - x^_i)                        C: the ceil(n / one_in) largest by magnitude of each block of n values
//   x_i <- h_i + gamma Sum_j W_ij (x^_j - x^_i)         which is h_i + gamma (s_i - x^_i) with s_i = Sum_j W_ij x^_j, self included
//
// What C leaves out stays in h - x^ until it is sent: that is the memory which top-k needs, and which random-k (kernels/mask.h)
// does without. x^ begins as x, which is the same on all workers then.
//
// A worker's x^ is published to each neighbour by an exchange of its own, which commits or aborts at both ends alike. So each
// edge has its own pair of copies, x^_ij and x^_ji, which both of its ends keep (exchange/replicas.h): 2 floats per value and
// neighbour, where CHOCO without faults needs 2 per value. Where a swap commits, both ends take it and both mix that edge,
// with the same two copies and so in opposite directions to the bit; where it aborts neither does either; where it was in
// doubt, the one that learns of it later takes and mixes it then, before any newer one. So the sum of all x is kept whatever
// aborts, and without faults all x^_ij of a worker are its x^_i.
//
// An edge must know its copies from one round to the next: the schedule has one round, whose graph is symmetric. As with ATC
// an exchange cannot hide behind the next iteration.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "starling/exchange/exchange.h"
#include "starling/kernels/top_k.h"
#include "starling/optim/blocks.h"
#include "starling/optim/clipping.h"
#include "starling/optim/schemes/scheme.h"
#include "starling/topology/graph.h"

namespace starling {

class Choco final : public Scheme {
 public:
  // Blocks without copies get them: they must be the same on all workers. The exchange has Chooser::sender.
  Choco(std::vector<Block>& blocks, Exchange& exchange, const Graph& graph, int rank, TopK top, double gamma,
        RuleOf rule, Clipping& clipping);

  // Collective, but for the first one of new blocks: where the two ends of an edge have different copies (a swap was in doubt
  // when what was loaded was saved, or when an exchange ended), they begin again from one worker's parameters.
  void begin() override;
  void step() override;

 private:
  void combine(Block& block);
  std::vector<std::pair<int, int>> differing();
  void begin_again(const std::vector<std::pair<int, int>>& edges);

  std::vector<Block>& blocks_;
  Exchange& exchange_;
  const Graph graph_;
  const int rank_;
  const TopK top_;
  const double gamma_;
  RuleOf rule_;
  Clipping& clipping_;
  bool fresh_ = true;  // all copies are new
  std::vector<std::uint32_t> room_;
};

}  // namespace starling
