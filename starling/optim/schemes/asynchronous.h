// Asynchronous gossip: A2CiD2 (Nabli et al. 2023, arXiv 2306.08289), and without its momentum AD-PSGD (Lian et al. 2018,
// arXiv 1710.06952). The formulas stand in gossip/a2cid2.h; pairs of workers average on the transport's thread (gossip/gossip.h),
// as often as the clock says, and a step waits for nobody:
//
//   d   <- what the local rule makes of the parameters, less what they were when they were last renewed
//   x, x~ <- the momentum up to now;  x + d, x~ + d
//   the parameters <- x
//
// The parameters are this thread's copy of x, so the gradient is at what x was one step ago: averagings since then are in x, not
// yet in the copy. All that was done to the parameters between two steps is in d.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "starling/gossip/gossip.h"
#include "starling/optim/blocks.h"
#include "starling/optim/schemes/scheme.h"

namespace starling {

class Asynchronous final : public Scheme {
 public:
  // `adapt` does the local rule's step on all parameters, which are float32.
  Asynchronous(std::vector<Block>& blocks, std::unique_ptr<Transport> transport, GossipOptions options,
               Log log, std::shared_ptr<Timeline> timeline, std::function<void()> adapt);

  void begin() override { gossip_.meet(); }
  void step() override;
  void pause() override;
  void resume() override { gossip_.resume(); }
  ExchangeStatistics counted() const override;

 private:
  void renew(std::size_t block);

  std::vector<Block>& blocks_;
  std::vector<std::vector<float>> taken_;  // of each block: the parameters as they were last renewed
  Gossip gossip_;
  std::function<void()> adapt_;
};

}  // namespace starling
