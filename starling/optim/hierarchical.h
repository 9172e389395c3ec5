// Gossip between nodes, all-reduce inside them; optimizer state is kept once per node (ZeRO-1, Rajbhandari et
// al. 2020, arXiv 1910.02054, with combine-then-adapt between the nodes): Options::hierarchy "node".
//
//   x_k(t+1) = Sum_l W_kl x_l(t) - lr u(g_k(x_k(t))),  g_k = mean of the gradients of node k's workers      k, l nodes
//
// A block has one owner on every node, at the same place on each. During backward() the sum of the node's
// gradients goes to the owner (reduce-scatter), which alone keeps the block's state, updates it, mixes it
// with the owners on other nodes as schemes/cta.cpp does, and hands the parameters to its node (all-gather).
// Between nodes a block takes one decision, and a node sends M bytes per round and neighbour, however many
// workers it has; the workers of a node always agree.
//
// A worker that dies takes its node along: the node's others end with an Error that names it. The other
// nodes go on.
#pragma once

#include <optional>
#include <vector>

#include "starling/optim/gradient_average.h"
#include "starling/optim/schemes/scheme.h"

namespace starling {

class Hierarchical final : public Scheme {
 public:
  // The exchange has the blocks that this worker owns, and their Block::index is the number there.
  explicit Hierarchical(const SchemeParts& parts) : Scheme(parts), node_(*parts.node) {}

  void attach(const Connection& connection) override;
  void detach() override;
  void begin() override;
  bool sends_ahead() const override { return true; }
  void step() override;
  void set_sync(bool sync) override { gradients_->set_sync(sync); }
  // What stays inside the node is not counted as sent.
  ExchangeStatistics counted() const override;

 private:
  void adapt();
  double sum_of_squares_of_node();
  void gather();

  const LocalNode& node_;
  Collectives* inside_ = nullptr;
  std::vector<Block*> own_;
  std::vector<at::Tensor> gathered_;  // by block, its parameters
  std::optional<GradientAverage> gradients_;
};

}  // namespace starling
