// Asynchronous gossip: A2CiD2 (gossip/a2cid2.h), without its momentum AD-PSGD (gossip/ad_psgd.h), and asynchronous push-sum
// (gossip/gossip.h). Pairs of workers average on the transport's thread (gossip/gossip.h), as often as the clock says, and a step
// waits for nobody:
//
//   d   <- what the local rule makes of the parameters, less what they were when they were last renewed
//   x, x~ <- the momentum up to now;  x + d, x~ + d
//   the parameters <- x
//
// Of push-sum x is z, and what the rule does is done to w z: z + d / w, but AdamW's decay is of z. What else was done to the
// parameters (clamped weights, an average that is kept) is of z as it is: it is taken over first.
//
// Of a parameter in bf16 or fp16 it is the master that is such a copy: x, and what goes over the wire, are fp32's numbers.
//
// The parameters are this thread's copy of x, so the gradient is at what x was one step ago: averagings since then are in x, not
// yet in the copy. All that was done to the parameters between two steps is in d.
//
// Of parameters on a GPU x and x~ are there too (optim/cuda/cuda.h), and a step waits for backward.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "starling/gossip/gossip.h"
#include "starling/optim/blocks.h"
#include "starling/optim/cuda/cuda.h"
#include "starling/optim/schemes/scheme.h"

namespace starling {

class Asynchronous : public Scheme {
 public:
  // `adapt` does the local rule's step on all parameters.
  Asynchronous(std::vector<Block>& blocks, std::unique_ptr<Transport> transport, GossipOptions options,
               Log log, std::shared_ptr<Timeline> timeline, std::function<void()> adapt);

  // Where gossip stands still, it goes on from the parameters: x and x~ are these.
  void begin() override;
  void step() override;
  void stand_by() override;
  void pause() override;
  void resume() override;
  void renew() override;
  ExchangeStatistics counted() const override;
  GossipStatistics gossip() const { return gossip_.statistics(); }

  // For saving and going on, while gossip stands still: x of a block is the parameters after renew().
  bool has_momentum() const { return momentum_; }
  // With momentum: calls f, which may write it, with x~ of a block, as floats in its order.
  void x_tilde(std::size_t block, const std::function<void(const at::Tensor&)>& f);
  GossipClock clock() const { return gossip_.clock(); }
  void set_clock(GossipClock clock) { gossip_.set_clock(clock); }

 protected:
  void adapt() { adapt_(); }
  // Calls f, which may write it, with y of each block, as floats in its order.
  void each_y(const std::function<void(const Block&, const at::Tensor& y)>& f);
  // What was done to the parameters since they were last renewed goes to x and x~, and x to the parameters: a gradient was made.
  void give();

 private:
  std::vector<std::unique_ptr<HeldBlock>> hold(const GossipOptions& options);
  void renew(std::size_t block, const Held& held, double scale);
  void catch_up();
  void lead();

  std::vector<Block>& blocks_;
  const bool momentum_, weighs_;
  bool standing_by_ = false, paused_ = false;
  // Of each block: the parameters as they were last renewed. A block of a new parameter group is another scheme's.
  std::vector<at::Tensor> taken_;
  std::vector<std::shared_ptr<GossipStream>> streams_;  // of GPUs
  std::vector<HeldOnDevice*> on_device_;                // by block, gossip's; null: on the CPU
  Gossip gossip_;
  std::function<void()> adapt_;
};

}  // namespace starling
