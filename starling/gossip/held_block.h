// The gossip's data of one block, and the operations from which the algorithms for pairs
// (pair_algorithm.h) are made. A block is in the host's memory, or in a GPU's (optim/cuda/). Data
// for the wire is in the host's memory.
#pragma once

#include <span>
#include <vector>

#include "starling/exchange/sent_block.h"
#include "starling/kernels/arguments.h"

namespace starling {

// The vectors that a block holds beside its x.
struct Beside {
  bool x_tilde = false;  // of the continuous momentum; x at first
  bool y = false;        // of gradient tracking; 0 at first
  bool weight = false;   // w of push-sum; 1 at first
};

// A block's present data, valid during a call. The memory is that of the block.
struct Held {
  std::span<float> x, x_tilde, y;  // x~ and y are empty if the block does not hold them
  double& weight;
  double eta_tau = 0;  // of the momentum that is not mixed in yet (a2cid2.h)
};

// Not for two threads at once: Gossip has a lock for each block.
class HeldBlock {
 public:
  virtual ~HeldBlock() = default;

  virtual Held now() = 0;
  virtual void mix_momentum(double eta_tau) = 0;
  // Mixes the momentum, then writes q = x to `to`, and behind it, if there is a y, y times `times`.
  // Returns whether all of it is finite.
  virtual bool send(double eta_tau, const kernels::WireBlock& to, float times) = 0;
  // Mixes the momentum, then x += alpha (q_j - q_i), x~ += alpha~ (q_j - q_i). Returns the
  // measurement of modular codes.
  virtual kernels::Measured average(double eta_tau, float alpha, float alpha_tilde, const SentBlock& q_j,
                                    const SentBlock& q_i) = 0;
  // x += share (q - x)
  virtual void move_towards(const SentBlock& q, float share) = 0;
  // y += share q_y    q_y: the values behind q
  virtual void add_tracked(const SentBlock& q, float share) = 0;
};

class HostBlock final : public HeldBlock {
 public:
  HostBlock(std::vector<float> x, Beside beside);

  Held now() override { return {x_, x_tilde_, y_, weight_}; }
  void mix_momentum(double eta_tau) override;
  bool send(double eta_tau, const kernels::WireBlock& to, float times) override;
  kernels::Measured average(double eta_tau, float alpha, float alpha_tilde, const SentBlock& q_j,
                            const SentBlock& q_i) override;
  void move_towards(const SentBlock& q, float share) override;
  void add_tracked(const SentBlock& q, float share) override;

 private:
  std::vector<float> x_, x_tilde_, y_;
  double weight_ = 1;
};

}  // namespace starling
