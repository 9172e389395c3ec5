// The state of an optimizer in memory, as a file and a checkpoint hold it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "starling/checkpoint/safetensors.h"

namespace starling {

// The start of a scheme's state that a saved state lacks: zeros or the parameter.
enum class Fresh { zero, parameter };

// A scheme's state: one tensor NAME.PARAMETER for each parameter, or one tensor NAME of a few
// numbers, with these initial values.
struct SchemeState {
  std::string name;
  Fresh fresh = Fresh::zero;
  std::optional<std::vector<double>> numbers{};
};

// See Optimizer::state().
struct OptimizerState {
  Metadata metadata;
  std::map<std::string, at::Tensor> tensors;
  // Not saved:
  std::vector<SchemeState> of_scheme{};  // the scheme's part of the tensors
  std::vector<std::string> of_rule{};    // what the names of the rule's part may begin with: "m."
  // For set_state(): the tensors have no part of the scheme, which begins anew, as in restart().
  bool scheme_anew = false;
};

}  // namespace starling
