// Gossip between nodes, all-reduce inside them; optimizer state is kept once per node (ZeRO-1, Rajbhandari et al. 2020, arXiv
// 1910.02054, with combine-then-adapt between the nodes).
//
//   x_k(t+1) = Sum_l W_kl x_l(t) - lr u(g_k(x_k(t))),  g_k = mean of the gradients of node k's workers      k, l nodes
//
// A block has one owner on every node, at the same place on each. During backward() the sum of the node's gradients goes to
// the owner (reduce-scatter), which alone keeps the block's state, updates it, mixes it with the owners on other nodes as
// cta.h does, and hands the parameters to its node (all-gather). Between nodes a block takes one decision, and a node
// sends M bytes per round and neighbour, however many workers it has; the workers of a node always agree.
//
// A worker that dies takes its node along: the node's others end with an Error that names it. The other nodes go on.
#pragma once

#include <vector>

#include "starling/exchange/exchange.h"
#include "starling/optim/blocks.h"
#include "starling/optim/clipping.h"
#include "starling/optim/schemes/all_reduce.h"
#include "starling/optim/schemes/scheme.h"
#include "starling/transport/c10d/collectives.h"

namespace starling {

// One of the nodes, as one of its workers sees it.
struct Node {
  int size = 1;              // workers
  int place = 0;             // mine among them
  std::vector<int> owner{};  // of each block, its place
};

class Hierarchical final : public Scheme {
 public:
  // The exchange has the blocks that this worker owns, and their Block::index is the number there.
  Hierarchical(std::vector<Block>& blocks, const Node& node, Collectives& inside, Exchange& between,
               RuleOf rule, Clipping& clipping);

  void begin() override;
  bool sends_ahead() const override { return true; }
  void step() override;
  void set_sync(bool sync) override { gradients_.set_sync(sync); }
  ExchangeStatistics counted() const override {
    ExchangeStatistics all = gradients_.counted();
    all.bytes_sent = 0;  // what stays inside the node
    return all;
  }

 private:
  void adapt();
  double sum_of_squares_of_node();
  void gather();

  std::vector<Block>& blocks_;
  const Node& node_;
  Collectives& inside_;
  Exchange& between_;
  RuleOf rule_;
  Clipping& clipping_;
  std::vector<Block*> own_;
  std::vector<at::Tensor> gathered_;  // by block, its parameters
  AllReduce gradients_;
};

}  // namespace starling
