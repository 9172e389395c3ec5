// What an Optimizer is made of.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "starling/exchange/exchange.h"
#include "starling/optim/blocks.h"
#include "starling/optim/clipping.h"
#include "starling/optim/gradient_spans.h"
#include "starling/optim/local_step.h"
#include "starling/optim/optimizer.h"
#include "starling/optim/options.h"
#include "starling/optim/rule_step.h"
#include "starling/optim/schemes/scheme.h"
#include "starling/transport/c10d/collectives.h"

namespace starling {

// As this world's users want it; without a limit to waiting of their own.
inline ExchangeOptions exchange_options(const World& world) {
  ExchangeOptions options;
  options.patience.meet = world.timeouts.meet;
  options.patience.silent = world.timeouts.silent;
  options.patience.stalled = world.timeouts.stalled;
  options.patience.interrupted = world.interrupted;
  options.log = world.log;
  options.timeline = world.timeline;
  return options;
}

struct Optimizer::Engine {
  Engine() = default;
  // What is on its way to the exchange from a GPU ends before it does.
  ~Engine() {
    for (const Block& block : blocks) {
      if (block.on_device) block.on_device->end();
    }
  }

  World world;
  Options options;
  Rule rule;  // of all groups, each with its own options
  std::string channel;
  std::vector<at::Tensor> buffers;  // of the module
  std::vector<std::pair<std::string, at::Tensor>>
      model;  // all its parameters and buffers, each once, by name
  std::vector<Block> blocks;
  std::vector<std::size_t> group_sizes;      // parameters of each group that the blocks hold
  torch::optim::Optimizer* inner = nullptr;  // the local rule, where Starling did not write it
  int connections = 0;                       // exchanges so far: each group added later makes a new one
  ExchangeStatistics before;                 // of the exchanges before this one
  Clipping clipping;
  std::optional<LocalStep> local;
  std::unique_ptr<Collectives> collectives;
  LocalNode node;  // with a hierarchy
  std::unique_ptr<Collectives> inside_node;
  std::unique_ptr<Exchange> exchange;
  std::unique_ptr<Scheme> scheme;
  std::unique_ptr<GradientSpans> gradient_spans;  // where a timeline is kept

  Schedule schedule() const { return schedule_of(options, world.size, world.local_size); }
  // Whether this worker updates the block, and so keeps its states.
  bool owns(std::size_t block) const { return node.owner.empty() || node.owner[block] == node.place; }
  bool in_pairs() const { return averages_in_pairs(options); }
  std::vector<Block*> own_blocks() {
    std::vector<Block*> own;
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      if (owns(b)) own.push_back(&blocks[b]);
    }
    return own;
  }
  // Each block to the place that has least so far, which is the same on all nodes, and whatever comes later.
  void share_among_node() {
    std::vector<std::int64_t> load(static_cast<std::size_t>(node.size));
    node.owner.clear();
    int mine = 0;
    for (Block& block : blocks) {
      const auto least = std::min_element(load.begin(), load.end());
      *least += block.length;
      node.owner.push_back(static_cast<int>(least - load.begin()));
      if (node.owner.back() == node.place) block.index = mine++;
    }
  }

  // From the states of all blocks' grids, one after the other; anew where these are not as many.
  void set_grids(std::span<const int> states) {
    if (!is_modular(options.wire)) return;
    const std::size_t each = blocks.front().grid.state().size();
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      blocks[b].grid = Grid(options.wire, each - 1);
      if (states.size() == each * blocks.size()) blocks[b].grid.set_state(states.subspan(each * b, each));
    }
  }
};

}  // namespace starling
