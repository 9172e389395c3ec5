// The replicas of all blocks (exchange/replicas.h): a worker and each of its neighbours know the
// other's parameters by them. A scheme keeps them, and saves them as its state. They are in the
// host's memory, and so are the parameters that they work on (host_blocks.h).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "starling/exchange/replicas.h"
#include "starling/optim/schemes/host_blocks.h"
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

  // Reads the parameters to the host, after all passes so far. Waits for a GPU.
  void read(Block& block) { x_.read(block); }
  // |x - x^|^2 of the block, as read, at each neighbour.
  std::vector<double> distances(const Block& block) const;
  // Writes the wire block of what was read.
  void write(const Block& block, void* to);
  // Takes committed swaps (replicas.h) in the order of their rounds, and mixes each round's into
  // the parameters, which were read, with `gamma` times the weight.
  void combine(Block& block, std::span<const Arrival> finished, double gamma);

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
  HostBlocks x_;
  std::vector<Replicas> replicas_;  // by block
  bool fresh_ = true;               // all copies are new
  std::vector<std::uint32_t> room_;
};

}  // namespace starling
