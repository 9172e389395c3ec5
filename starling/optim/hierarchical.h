// Gossip between nodes, all-reduce inside them: Options::hierarchy "node". Optimizer state is kept
// once per node (ZeRO-1, Rajbhandari et al. 2020, arXiv 1910.02054), with combine-then-adapt
// between the nodes.
//
//   x_k(t+1) = Sum_l W_kl x_l(t) - lr u(g_k(x_k(t)))       k, l: nodes
//   g_k = mean of the gradients of node k's workers
//
// A block has one owner on every node, at the same place on each. During backward() the owner gets
// the sum of the node's gradients (reduce-scatter). Only the owner keeps the block's state and
// updates the block. It mixes the block with the owners on other nodes, as schemes/cta.cpp does,
// and sends the parameters to its node (all-gather). So a block has one commit decision between
// nodes, and the workers of a node always agree. A node sends M bytes per round and neighbour,
// whatever its number of workers.
//
// If a worker dies, its node's other workers end with an Error that names it. The other nodes
// continue. With parameters on a GPU, a node's gradients and parameters go over the host's memory.
#pragma once

#include <optional>
#include <vector>

#include "starling/optim/gradient_average.h"
#include "starling/optim/schemes/scheme.h"

namespace starling {

class Hierarchical final : public Scheme {
 public:
  // The exchange has only the blocks that this worker owns. Block::index is the number there.
  explicit Hierarchical(const SchemeParts& parts) : Scheme(parts), node_(*parts.node) {}

  void attach(const Connection& connection) override;
  void detach() override;
  void begin() override;
  bool sends_ahead() const override { return true; }
  void step() override;
  void set_sync(bool sync) override {
    if (gradients_) gradients_->set_sync(sync);
  }
  // Traffic inside the node does not count as sent.
  ExchangeStatistics counted() const override;

 private:
  void adapt();
  double sum_of_squares_of_node();
  void gather();

  const LocalNode& node_;
  Collectives* inside_ = nullptr;
  std::vector<Block*> own_;
  std::vector<at::Tensor> gathered_;  // by block: its parameters
  std::optional<GradientAverage> gradients_;
};

}  // namespace starling
