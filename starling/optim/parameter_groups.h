// The parameters of a module as the groups of a rule.
#pragma once

#include <vector>

#include <torch/optim/optimizer.h>

#include "starling/optim/rules.h"

namespace torch::nn {
class Module;
}

namespace starling {

// All parameters of the module that require a gradient, each once, in the module's order: one group
// with this rule. With Muon, the weights of the module's embeddings are a second group, which has
// use_muon = false.
std::vector<torch::optim::OptimizerParamGroup> groups_of(const torch::nn::Module& module, const Rule& rule);

}  // namespace starling
