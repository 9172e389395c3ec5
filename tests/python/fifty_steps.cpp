// The C++ side of equal_test.py: one worker, whose optimizers' states it leaves in FOLDER.
//
//   fifty-steps FOLDER
#include <cmath>
#include <cstdio>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tanh.h>
#include <fmt/format.h>

#include "starling/optim/optimizer.h"
#include "starling/optim/rule_step.h"

using at::Tensor;

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("usage: fifty-steps FOLDER\n", stderr);
    return 2;
  }
  const starling::World world = starling::World::from_environment();
  const starling::Rule sgd = starling::SGD{.lr = 0.1, .momentum = 0.9, .nesterov = true},
                       adam = starling::Adam{.lr = 0.01, .weight_decay = 0.1},
                       adamw = starling::AdamW{.lr = 0.01, .weight_decay = 0.1},
                       accum_adamw = starling::AccumAdamW{.lr = 0.01, .window = 4};
  for (const auto& [rule, scheme, wire] : {std::tuple(sgd, "cta", "fp32"),
                                           {adam, "cta", "fp32"},
                                           {adamw, "cta", "fp32"},
                                           {accum_adamw, "cta", "fp32"},
                                           {accum_adamw, "cta", "int8"},
                                           {accum_adamw, "atc", "bf16"},
                                           {accum_adamw, "all-reduce", "fp32"}}) {
    at::manual_seed(7);
    std::vector<Tensor> parameters;
    for (const auto& [rows, columns] : {std::pair(32, 256), {256, 512}, {512, 8}})
      parameters.push_back((at::randn({rows, columns}) / std::sqrt(rows)).set_requires_grad(true));
    starling::Optimizer optimizer(parameters, rule, {.scheme = scheme, .wire = starling::wire_named(wire)},
                                  world);
    at::manual_seed(100 + static_cast<std::uint64_t>(world.rank));
    for (int t = 0; t < 50; ++t) {
      const Tensor inputs = at::randn({16, 32});
      Tensor hidden = inputs;
      for (int layer = 0; layer < 2; ++layer) hidden = at::tanh(at::mm(hidden, parameters[layer]));
      optimizer.zero_grad();
      at::mse_loss(at::mm(hidden, parameters[2]), inputs.narrow(1, 0, 8).sin()).backward();
      optimizer.step();
    }
    optimizer.save(fmt::format("{}/{}-{}-{}-{}.safetensors", argv[1], starling::rule_name(rule), scheme, wire,
                               world.rank));
  }
}
