// SwarmSGD: Nadiradze, Sabour, Davies, Li & Alistarh 2021 (arXiv 1910.12308), in its form without waiting.
//
//   H local steps         p_i <- p_i - lr g(p_i), beginning at p_i = x_i
//   after the last one    x_i <- x_i + (p_i - what x_i was before the first),  p_i <- x_i
//   averaging of i,j      x_i, x_j <- (x_i + x_j) / 2
//
// x is what others may average with: whoever meets i while it makes its local steps takes x_i without them, and they are added to
// whatever x_i is by then. Time counts such stretches of H steps: with rate 1 a worker averages once for each in the mean, after
// a random number of them, as in the paper. Its quantised averaging, a code of x modulo the range decoded next to the
// receiver's own x, is what the wires int8 and int4 do (kernels/modular.h). With H = 1 this is AD-PSGD.
#pragma once

#include <functional>
#include <memory>

#include "starling/optim/schemes/asynchronous.h"

namespace starling {

class Swarm final : public Asynchronous {
 public:
  // H: local_steps, from 1. The others as Asynchronous.
  Swarm(std::vector<Block>& blocks, std::unique_ptr<Transport> transport, GossipOptions options, Log log,
        std::shared_ptr<Timeline> timeline, std::function<void()> adapt, int local_steps);

  void step() override;

 private:
  const int local_steps_;
  int made_ = 0;  // of them, in this stretch
};

}  // namespace starling
