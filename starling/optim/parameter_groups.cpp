#include "starling/optim/parameter_groups.h"

#include <set>
#include <utility>
#include <variant>

#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

#include "starling/optim/optimizer.h"

namespace starling {
namespace {

std::set<const void*> embeddings_in(const torch::nn::Module& module) {
  std::set<const void*> weights;
  const auto add = [&](const torch::nn::Module& any) {
    if (const auto* const one = dynamic_cast<const torch::nn::EmbeddingImpl*>(&any))
      weights.insert(one->weight.unsafeGetTensorImpl());
    if (const auto* const bag = dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&any))
      weights.insert(bag->weight.unsafeGetTensorImpl());
  };
  add(module);
  for (const auto& inner : module.modules(/*include_self=*/false)) add(*inner);
  return weights;
}

}  // namespace

std::vector<torch::optim::OptimizerParamGroup> groups_of(const torch::nn::Module& module, const Rule& rule) {
  const auto* const muon = std::get_if<Muon>(&rule);
  const std::set<const void*> apart = muon == nullptr ? std::set<const void*>() : embeddings_in(module);
  std::vector<at::Tensor> parameters, embeddings;
  std::set<const void*> seen;
  for (const at::Tensor& p : module.parameters()) {
    if (!p.requires_grad() || !seen.insert(p.unsafeGetTensorImpl()).second) continue;
    (apart.contains(p.unsafeGetTensorImpl()) ? embeddings : parameters).push_back(p);
  }
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::move(parameters), rule_options(rule));
  if (embeddings.empty()) return groups;
  Muon adamw = *muon;
  adamw.use_muon = false;
  groups.emplace_back(std::move(embeddings), rule_options(adamw));
  return groups;
}

}  // namespace starling
