// An exponential moving average of the model that one worker trains.
//
//   e <- decay e + (1 - decay) x    after each step; e = x at the start
//
// x are the parameters, and the buffers of real numbers, which batch normalisation needs beside
// them. e is in fp32. A wrong x would stay in e for many steps, so e leaves out x if
//
//   a parameter is not finite
//   |x - e| of all parameters jumps (exchange/usual_distance.h), with a jump guard
//
// A buffer that is not finite is left out alone. If x jumps kEnough times in a row, the run itself
// has changed, and e follows.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "starling/core/log.h"
#include "starling/exchange/usual_distance.h"
#include "starling/optim/optimizer.h"

namespace starling {

class Ema {
 public:
  // Begins with the model's present values. The model keeps its tensors. jump_guard: the factor of
  // a jump; 0: none is left out. Logs a warning for the first x that is left out.
  Ema(
      const torch::nn::Module& model, double decay, double jump_guard = 0,
      Log log = [](Level, const std::string&) {});

  // Returns whether it has taken the model in.
  bool update();
  // Collective: puts the average of all workers' moving averages into the model.
  void show_average(Optimizer& optimizer) const;
  // "ema.NAME" of each parameter and buffer: the moving averages themselves.
  std::vector<std::pair<std::string, at::Tensor>> tensors() const;

 private:
  struct Value {
    std::string name;
    at::Tensor of, average;
    bool is_parameter;
  };
  double distance() const;  // |x - e|
  bool takes(double distance);

  const double decay_, jump_guard_;
  const Log log_;
  std::vector<Value> values_;
  UsualDistance usual_;
  bool warned_ = false;
};

}  // namespace starling
