// CTA and ATC around a torch::optim::Optimizer that Starling did not write. Its step is a box: it sees the parameters and
// their gradients, and changes the parameters.
//
//   cta   x <- Wx,  then  x <- step(x, g)      g is the gradient at the worker's own old x
//   atc   x <- step(x, g),  then  x <- Wx
//
// Not fused: a pass over memory to mix, one for the step, one for the wire. An optimizer whose step looks at x itself
// (weight decay inside the gradient) sees the mixed x under cta, where Starling's own rules see the old one.
#pragma once

#include <functional>
#include <vector>

#include "starling/exchange/exchange.h"
#include "starling/optim/blocks.h"
#include "starling/optim/schemes/scheme.h"

namespace starling {

class Around final : public Scheme {
 public:
  enum class Order { combine_then_adapt, adapt_then_combine };
  Around(Order order, std::vector<Block>& blocks, Exchange& exchange, std::function<void()> adapt)
      : order_(order), blocks_(blocks), exchange_(exchange), adapt_(std::move(adapt)) {}

  void begin() override;
  bool sends_ahead() const override { return order_ == Order::combine_then_adapt; }
  void step() override;

 private:
  void send();
  void combine();

  const Order order_;
  std::vector<Block>& blocks_;
  Exchange& exchange_;
  std::function<void()> adapt_;
};

}  // namespace starling
