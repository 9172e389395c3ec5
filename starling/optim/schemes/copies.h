// The replicas of all blocks (exchange/replicas.h): a worker and each of its neighbours know the
// other's parameters by them. A scheme keeps them, and saves them as its state.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "starling/exchange/replicas.h"
#include "starling/optim/schemes/scheme.h"

namespace starling {

class Copies {
 public:
  // `top`: the values that a wire block has. `blocks` outlives the copies.
  Copies(std::vector<Block>& blocks, int rank, TopK top) : blocks_(blocks), rank_(rank), top_(top) {}

  // Those of new blocks begin as the parameters. The others keep their values.
  void attach(const Graph& graph);
  // All begin as the parameters.
  void restart();
  // Collective, except the first one for new blocks. If the two ends of an edge have different
  // copies, the edge begins again from one worker's parameters. Copies differ if a swap was in
  // doubt when the state was saved, or when an exchange ended.
  void agree(Exchange& exchange);
  void state(StateVisitor& visitor);

  // |x - x^|^2 of the block, at each neighbour.
  std::vector<double> distances(const Block& block) const;
  // Writes the wire block.
  void write(const Block& block, void* to);
  // Takes one committed swap (replicas.h). Returns what is to be mixed, with `gamma` times the
  // weight.
  Arrival take(const Block& block, const Arrival& swap, double gamma);

 private:
  using Pair = std::pair<int, int>;  // two neighbours, the lower rank first

  Replicas& of(const Block& block) { return replicas_[static_cast<std::size_t>(block.index)]; }
  const Replicas& of(const Block& block) const { return replicas_[static_cast<std::size_t>(block.index)]; }
  void begin();  // of the blocks that have none yet
  std::vector<Pair> differing(Exchange& exchange);
  void begin_again(Exchange& exchange, const std::vector<Pair>& edges);

  std::vector<Block>& blocks_;
  const int rank_;
  const TopK top_;
  Graph graph_{1};
  std::vector<Replicas> replicas_;  // by block
  bool fresh_ = true;               // all copies are new
  std::vector<std::uint32_t> room_;
};

}  // namespace starling
