// An exponential moving average of the model that one worker trains.
//
//   e <- decay e + (1 - decay) x    after each step; e = x at the start
//
// x are the parameters, and the buffers of real numbers, which batch normalisation needs beside
// them. e is in fp32.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "starling/optim/optimizer.h"

namespace starling {

class Ema {
 public:
  // Begins with the model's present values. The model keeps its tensors.
  Ema(const torch::nn::Module& model, double decay);

  void update();
  // Collective: puts the average of all workers' moving averages into the model.
  void show_average(Optimizer& optimizer) const;
  // "ema.NAME" of each parameter and buffer: the moving averages themselves.
  std::vector<std::pair<std::string, at::Tensor>> tensors() const;

 private:
  struct Value {
    std::string name;
    at::Tensor of, average;
  };
  const double decay_;
  std::vector<Value> values_;
};

}  // namespace starling
