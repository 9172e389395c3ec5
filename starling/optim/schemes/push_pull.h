// Asynchronous push-pull: Pu, Shi, Xu & Nedic 2021 (arXiv 1810.06653), in its form G-Push-Pull, where one pair at a time meets.
//
//   x_i, y_i, g_i         the parameters, the tracked gradient, and the gradient that is in it; y = g = 0 at first
//   gradient of i         y_i <- y_i + g(x_i) - g_i,  g_i <- g(x_i);  x_i <- x_i + d      d: what the local rule makes of y_i
//   push from i to j      x_j <- (x_i + x_j) / 2                                          j pulls x_i
//                         y_j <- y_j + y_i / 2,  y_i <- y_i / 2                           i pushes y_i
//
// The sum of all y is that of all last gradients: where all x agree and no y moves them, the sum of all gradients is zero. So with a
// constant learning rate workers come to what is best for all, exactly, however different their data and their speeds are: whoever
// makes four times as many gradients only renews its own. Without tracking (async-push-sum, ad-psgd) it counts four times.
//
// (Gradients of batches are noisy: then as near as the learning rate lets them.)
//
// An exchange that is lost moves nothing; one that is mended late moves its y, and x not, which would be an old one. Who dies takes
// along what it held of y, and leaves what it pushed of its gradient: that is in the others' steps for good, until begin() makes
// y = g = 0 at all (a checkpoint that is loaded, a parameter group that is added). Who makes no gradient for now, since it waits for
// the others at an average, a checkpoint or the end, takes its own out and hands the rest over:
//
//   stand by   y_i <- y_i - g_i,  g_i <- 0;  then once x_i and all of y_i to one j, and nobody pushes to i
//
// A gradient that is not finite would come to all, and does not: where it is in a segment, g stays as it was there, with a warning.
//
// Twice as much is sent as by others, and kept are 8 bytes for each value (on a GPU 12). The rule finds y in .grad.
#pragma once

#include <memory>
#include <vector>

#include "starling/optim/schemes/asynchronous.h"

namespace starling {

class PushPull final : public Asynchronous {
 public:
  // Options that track. The others as Asynchronous.
  PushPull(std::vector<Block>& blocks, std::unique_ptr<Transport> transport, GossipOptions options, Log log,
           std::shared_ptr<Timeline> timeline, std::function<void()> adapt);

  void begin() override;
  void step() override;
  void stand_by() override;

 private:
  void track_gradients();

  const Log log_;
  bool finite_ = true;         // the last gradient was
  std::vector<at::Tensor> g_;  // by block
};

}  // namespace starling
