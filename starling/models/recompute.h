// Activation checkpointing (Chen et al. 2016, arXiv 1604.06174): a block keeps its inputs alone for
// the backward pass, which computes the block's activations again. With n equal blocks, the memory
// is that of n inputs and one block.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace starling {

using Computation = std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>;

// Returns f(inputs). f computes with the module, which outlives the backward pass, and changes no
// input. The backward pass calls f again, under the autocast and with the random numbers of now:
// `random` is the generator that f draws from, if it draws. The module's buffers, such as running
// statistics, are then put back. So all gradients are those of f(inputs) to the bit. Without
// gradients, f is called once and nothing is kept.
at::Tensor recomputed(torch::nn::Module& module, const Computation& f, const std::vector<at::Tensor>& inputs,
                      const std::optional<at::Generator>& random = std::nullopt);

}  // namespace starling
