// An algorithm for pairs: what two workers send to each other, and how it changes their blocks.
// Each algorithm is one file:
//
//   pair_averaging.cpp   x of both, and x~ with momentum, move towards each other: AD-PSGD, A2CiD2
//   pair_push.cpp        the asker gives half of its mass to the worker that it asks: push-sum
//   pair_push_pull.cpp   a push with a tracked gradient: push-pull
//
// Gossip (gossip.h) does the rest for all of them: who meets whom and when, and whether a swap
// commits at both ends or at neither.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "starling/exchange/edge.h"
#include "starling/exchange/sent_block.h"
#include "starling/gossip/a2cid2.h"
#include "starling/gossip/held_block.h"
#include "starling/kernels/arguments.h"

namespace starling {

// How a worker that makes no gradients for a while stands by.
//   meets        it goes on as before
//   declines     nobody meets it any more, since it would keep what it is given
//   hands_over   likewise, and it sends all that it would give in part to one neighbour first
enum class StandBy { meets, declines, hands_over };

// Never changes, so any thread may call it. The caller has locked the block.
class PairAlgorithm {
 public:
  virtual ~PairAlgorithm() = default;

  virtual Beside beside() const = 0;  // what a block holds beside x
  // eta of the continuous momentum, per gradient (a2cid2.h); 0: none.
  virtual double eta() const { return 0; }
  virtual StandBy stand_by() const { return StandBy::meets; }
  virtual Direction direction(bool i_asked) const = 0;

  // Bytes of a block with this number of values on the wire.
  virtual std::size_t bytes(Wire wire, std::size_t size) const = 0;
  // Writes what is sent of a block, after its momentum, with the weight or the tracked values
  // behind x. `all`: all that is given, where usually a part of it is. Returns whether it is
  // finite.
  virtual bool send(HeldBlock& block, double eta_tau, const kernels::WireBlock& to, bool all) const = 0;
  // The flaw for which an arrival of a block with this number of values is not mixed; empty if it
  // has none.
  virtual std::string_view flaw(const SentBlock& theirs, std::size_t size) const;

  // A swap has committed, and theirs has arrived. `late`: after a broken connection was restored.
  // Returns the measurement of modular codes.
  virtual kernels::Measured take(HeldBlock& block, double eta_tau, const SentBlock& theirs,
                                 const SentBlock& mine, bool late) const = 0;
  // A swap has committed or is in doubt: what was given is no longer this worker's. take_back(): it
  // has turned out that nobody took it.
  virtual void give(HeldBlock&, const SentBlock& /*mine*/) const {}
  virtual void take_back(HeldBlock&, const SentBlock& /*mine*/) const {}
};

// eta = 0: no momentum, and there is no x~.
std::shared_ptr<const PairAlgorithm> pair_averaging(const A2cid2& momentum = {});
// Not for modular wires, as pair_push_pull().
std::shared_ptr<const PairAlgorithm> pair_push();
std::shared_ptr<const PairAlgorithm> pair_push_pull();

}  // namespace starling
