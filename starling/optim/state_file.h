// An optimizer's state as a file, and the checks of a state that is given, in a file or otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "starling/checkpoint/safetensors.h"
#include "starling/kernels/wire.h"
#include "starling/optim/blocks.h"
#include "starling/optim/optimizer.h"

namespace starling {

using Named = std::vector<std::pair<std::string, at::Tensor>>;
inline constexpr const char* kStateFormat = "starling optimizer 1";
// The share of an optimizer that keeps all of its state. The metadata then has no "share".
inline constexpr const char* kWholeShare = "all";

// All tensors and metadata of a file.
OptimizerState read_state(const SafetensorsReader& file);
Digest save_tensors(File file, const std::map<std::string, at::Tensor>& tensors, const Metadata& metadata);

// torch's type of a dtype in a safetensors file, "F32"; nothing if torch has none.
std::optional<at::ScalarType> torch_type(const std::string& dtype);

// Throws Error if torch has no such type.
at::Tensor read_tensor(const SafetensorsReader& file, const TensorInfo& tensor);

// A state to load, from a file or from the caller.
struct GivenState {
  OptimizerState state;
  // Throws, with the origin of the state. Empty name: the reason is not about one tensor.
  std::function<void(const std::string& name, const std::string& why)> refuse;

  std::string_view metadata(const std::string& key) const {
    const auto found = state.metadata.find(key);
    return found == state.metadata.end() ? std::string_view() : found->second;
  }
};

// A tensor of floats on the CPU, with this tensor's strides.
at::Tensor floats_like(const at::Tensor& tensor);
at::Tensor numbers(const std::vector<double>& values);

// Removes the tensors whose names are not wanted, and returns them.
std::map<std::string, at::Tensor> take_others(OptimizerState& state, const Named& wanted);

// The blocks' grids as text: Grid::state() of each.
std::string grids_text(const std::vector<Block>& blocks);
// The key of the metadata that has the blocks' grids of this wire.
std::string grids_key(Wire wire);
// The grids of this wire; empty if the state has none.
std::vector<int> grids_in(const GivenState& given, Wire wire);
std::int64_t position_in(const GivenState& given);
// Refuses tensors that differ from `wanted`.
void check_tensors(const GivenState& given, const std::string& rule, const std::string& share,
                   const Named& wanted);

}  // namespace starling
