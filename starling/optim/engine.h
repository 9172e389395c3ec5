// The parts of an Optimizer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "starling/core/error.h"
#include "starling/exchange/exchange.h"
#include "starling/optim/blocks.h"
#include "starling/optim/clipping.h"
#include "starling/optim/data_edits.h"
#include "starling/optim/gradient_spans.h"
#include "starling/optim/local_step.h"
#include "starling/optim/membership.h"
#include "starling/optim/optimizer.h"
#include "starling/optim/options.h"
#include "starling/optim/outer.h"
#include "starling/optim/pass.h"
#include "starling/optim/rule_step.h"
#include "starling/optim/schemes/scheme.h"
#include "starling/transport/c10d/collectives.h"

namespace starling {

// The world's timeouts, log and timeline. Patience::max_wait stays unset.
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

// Throw UsageError if World::rejoin, or a pause by World::partition, is not possible with these
// options.
void check_rejoin(const World& world, const Options& options, torch::optim::Optimizer* inner);
void check_partition(const World& world, const Options& options);

struct Optimizer::Engine {
  Engine() = default;
  // Waits until the GPUs have handed their blocks to the exchange, which is still alive here.
  ~Engine() {
    for (const Block& block : blocks) {
      if (block.on_device) block.on_device->end();
    }
  }

  World world;
  Options options;
  Rule rule;  // for all groups, each with its own options
  std::string channel;
  std::vector<at::Tensor> buffers;  // of the module
  std::vector<at::Tensor> frozen;   // its parameters that nobody trains
  std::vector<at::Tensor> spread;   // those that were spread at the first connection
  int averages = 0;                 // that stand in the parameters: scopes of Consensus
  std::vector<std::pair<std::string, at::Tensor>>
      model;  // all its parameters and buffers, each once, by name
  std::vector<std::pair<std::string, at::Tensor>> guests;  // see add_to_state()
  std::vector<Block> blocks;
  std::vector<std::vector<const void*>> taken;  // parameters of each group that the blocks hold
  torch::optim::Optimizer* inner = nullptr;     // the local rule, if Starling did not write it
  std::uint64_t cycle = 1;                      // positions of the schedule: see Exchange::position()
  std::uint64_t made = 0;                       // steps of the present period()
  int connections = 0;                          // exchanges so far; a later group makes a new one
  Schedule of_members;                          // of the present one
  Epoch epoch;                                  // its members
  int spoiled = 0;                              // how often the parameters were not sound of late
  std::uint64_t sound_since = 0;                // the step in which it came back the last time
  bool joined = false;                          // Optimizer::joined()
  std::uint64_t joins = 0;                      // Statistics::joins
  std::uint64_t steps = 0;                      // see Optimizer::steps()
  int operations = 0;                           // scopes of Operation
  ExchangeStatistics before;                    // of the earlier exchanges
  std::uint64_t rounds_before = 0;              // the same, as all members count: Statistics::round
  std::vector<UsualDistance> usual;             // of the last of them
  Clipping clipping;
  std::optional<LocalStep> local;
  std::unique_ptr<Collectives> collectives;
  LocalNode node;  // with a hierarchy
  std::unique_ptr<Collectives> inside_node;
  std::unique_ptr<Exchange> exchange;
  std::unique_ptr<Membership> membership;     // with World::rejoin
  std::function<void()> renew;                // makes a new exchange, if one of the others has called for it
  std::map<std::string, at::Tensor> to_come;  // tensors that add_to_state() will want
  std::unique_ptr<Scheme> scheme;
  std::optional<Outer> outer;
  std::unique_ptr<GradientSpans> gradient_spans;  // with a timeline
  std::optional<DataEdits> data_edits;            // with STARLING_LOG=debug

  std::vector<at::Tensor> beside() const {  // what is spread at the start beside parameters
    std::vector<at::Tensor> all = buffers;
    all.insert(all.end(), spread.begin(), spread.end());
    return all;
  }
  // The part that a state lacks: a worker that joins the run takes it from another.
  std::vector<at::Tensor> beside_state() const {
    return model.empty() ? beside() : std::vector<at::Tensor>();
  }
  // Throws UsageError if the last attempt to connect has failed.
  Exchange& connected() const {
    if (!exchange || !scheme || !scheme->is_attached())
      throw UsageError("the optimizer has no connections: the last attempt to make them has failed");
    return *exchange;
  }
  // Throws UsageError if a parameter has got another size, type or memory order.
  void check_parameters() {
    settle(blocks);
    for (const Block& block : blocks) check_pass(block, nullptr);
  }
  // Gossip stands still from here to the next step, and its result is in the parameters. Throws as
  // check_parameters().
  void stand_still() {
    check_parameters();
    scheme->pause();
    scheme->renew();
  }
  // Throws UsageError while an average stands in the parameters: a change to them would be lost.
  void needs_own_parameters(const std::string& what) const {
    if (averages > 0)
      throw UsageError(what + " within consensus(): its end puts this worker's own parameters back");
  }
  // With Partition::pause: waits while this worker sees too few of the others (partition.cpp).
  // Throws Error after timeouts.stalled.
  void wait_for_majority() const;
  // f(the exchange). If an average in it is called off by a renewal: again, in the next exchange.
  template <class F>
  auto on_edges(const F& f) {
    for (;;) {
      wait_for_majority();
      try {
        return f(connected());
      } catch (const RenewalCalled&) {
        renew();
      }
    }
  }
  // Whether the members are of a later epoch: one of them may be gone before all have met.
  bool is_renewed() const { return membership != nullptr && epoch.number > 0; }
  void begin_operation() {
    connected().begin_operation();
    ++operations;
  }
  void end_operation() {
    --operations;
    if (exchange) exchange->end_operation();
  }
  void disconnect() {
    if (scheme) scheme->detach();
    exchange.reset();
    collectives.reset();
    inside_node.reset();
  }
  std::uint64_t period() const { return period_of(options); }
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
  // Assigns each block to the place with the least load so far. The result is the same on all
  // nodes, and does not depend on later blocks.
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

  // Sets all blocks' grids from their states, one after the other. Other numbers of states: new
  // grids.
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
