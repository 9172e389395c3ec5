#include "starling/optim/state_file.h"

#include <set>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starling/core/error.h"
#include "starling/core/input.h"
#include "starling/kernels/modular.h"
#include "starling/optim/checkpoint.h"
#include "starling/optim/engine.h"
#include "starling/optim/state_text.h"

namespace starling {
namespace {

constexpr std::pair<at::ScalarType, const char*> kDtypes[] = {
    {at::kFloat, "F32"}, {at::kDouble, "F64"}, {at::kHalf, "F16"},  {at::kBFloat16, "BF16"},
    {at::kLong, "I64"},  {at::kInt, "I32"},    {at::kShort, "I16"}, {at::kChar, "I8"},
    {at::kByte, "U8"},   {at::kBool, "BOOL"}};

TensorInfo info_of(const std::string& name, const at::Tensor& tensor) {
  for (const auto& [type, dtype] : kDtypes) {
    if (type == tensor.scalar_type()) return {.name = name, .dtype = dtype, .shape = tensor.sizes().vec()};
  }
  throw UsageError(
      fmt::format("tensor \"{}\" is {}: that cannot be saved", name, c10::toString(tensor.scalar_type())));
}

at::ScalarType type_of(const TensorInfo& tensor, const SafetensorsReader& file) {
  if (const auto type = torch_type(tensor.dtype)) return *type;
  starling::refuse(file.path(), file.offset(tensor),
                   fmt::format("tensor \"{}\" is {}, which no optimizer has", tensor.name, tensor.dtype));
}

std::string text_of(const TensorInfo& tensor) {
  return fmt::format("{} [{}]", tensor.dtype, fmt::join(tensor.shape, ", "));
}

}  // namespace

OptimizerState read_state(const SafetensorsReader& file) {
  OptimizerState state{.metadata = file.metadata(), .tensors = {}};
  for (const TensorInfo& info : file.tensors()) state.tensors.emplace(info.name, read_tensor(file, info));
  return state;
}

std::optional<at::ScalarType> torch_type(const std::string& name) {
  for (const auto& [type, dtype] : kDtypes) {
    if (dtype == name) return type;
  }
  return std::nullopt;
}

at::Tensor read_tensor(const SafetensorsReader& file, const TensorInfo& info) {
  at::Tensor tensor = at::empty(info.shape, type_of(info, file));
  file.read(info, {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()});
  return tensor;
}

Digest save_tensors(const std::string& file, const std::map<std::string, at::Tensor>& tensors,
                    const Metadata& metadata) {
  return save_tensors(File::to_write(file), tensors, metadata);
}

Digest save_tensors(File file, const std::map<std::string, at::Tensor>& tensors, const Metadata& metadata) {
  std::vector<TensorInfo> infos;
  for (const auto& [name, tensor] : tensors) infos.push_back(info_of(name, tensor));
  SafetensorsWriter writer(std::move(file), infos, metadata);
  for (const TensorInfo& info : writer.tensors()) {
    const at::Tensor dense = tensors.at(info.name).cpu().contiguous().resolve_neg();
    writer.write({static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()});
  }
  return writer.finish();
}

Digest Optimizer::save(const std::string& file) const {
  const OptimizerState all = state();
  return save_tensors(file, all.tensors, all.metadata);
}

void Optimizer::load(const std::string& file) {
  const auto read = [&] {
    const auto reader = std::make_shared<const SafetensorsReader>(file);
    return GivenState{read_state(*reader), [reader](const std::string& name, const std::string& why) {
                        const std::uint64_t header = 8;
                        const auto offset = name.empty() ? header : reader->offset(*reader->find(name));
                        named_input([&] { starling::refuse(reader->path(), offset, why); });
                      }};
  };
  take_state("load its file", [&] { return named_input(read); });
}

void Optimizer::set_state(const OptimizerState& state) {
  take_state("take its state", [&] {
    return GivenState{state,
                      [](const std::string&, const std::string& why) { throw UsageError("state: " + why); }};
  });
}

OptimizerState Optimizer::state(bool values) const { return state(values, /*with_scheme=*/true); }

void Optimizer::add_to_state(std::vector<std::pair<std::string, at::Tensor>> tensors) {
  const OptimizerState now = state(/*values=*/false);
  for (const auto& [name, tensor] : tensors) {
    if (now.tensors.contains(name))
      throw UsageError(fmt::format("add_to_state: the state has a tensor \"{}\" already", name));
  }
  engine_->guests.insert(engine_->guests.end(), tensors.begin(), tensors.end());
  const c10::AutoGradMode no_gradient(false);
  for (const auto& [name, tensor] : tensors) {
    const auto given = engine_->to_come.find(name);
    if (given == engine_->to_come.end()) continue;
    if (given->second.sizes() != tensor.sizes())
      throw UsageError(
          fmt::format("add_to_state: tensor \"{}\" has another shape than the other workers'", name));
    tensor.copy_(given->second);
    engine_->to_come.erase(given);
  }
}

void Optimizer::save(torch::serialize::OutputArchive&) const {
  throw UsageError("starling::Optimizer is not saved to torch's archives: use save(file)");
}

void Optimizer::load(torch::serialize::InputArchive&) {
  throw UsageError("starling::Optimizer is not loaded from torch's archives: use load(file)");
}

// A tensor of floats on the CPU, with this tensor's strides.
at::Tensor floats_like(const at::Tensor& tensor) {
  return at::empty_like(tensor, at::TensorOptions(at::kFloat).device(at::kCPU));
}

at::Tensor numbers(const std::vector<double>& values) {
  const at::Tensor tensor = at::empty({static_cast<std::int64_t>(values.size())}, at::kDouble);
  std::ranges::copy(values, tensor.mutable_data_ptr<double>());
  return tensor;
}

std::map<std::string, at::Tensor> take_others(OptimizerState& state, const Named& wanted) {
  std::map<std::string, at::Tensor> others = state.tensors;
  for (const auto& [name, tensor] : wanted) others.erase(name);
  for (const auto& [name, tensor] : others) state.tensors.erase(name);
  return others;
}

std::string grids_text(const std::vector<Block>& blocks) {
  std::vector<int> exponents;
  for (const Block& block : blocks) {
    for (const int exponent : block.grid.state()) exponents.push_back(exponent);
  }
  return fmt::format("{}", fmt::join(exponents, " "));
}

std::string grids_key(Wire wire) { return fmt::format("grids.{}", name_of(wire)); }

std::vector<int> grids_in(const GivenState& given, Wire wire) {
  const std::string_view text = is_modular(wire) ? given.metadata(grids_key(wire)) : "";
  auto exponents = read_grids(text);
  if (!exponents)
    given.refuse("", fmt::format("{} \"{}\" are not numbers from {} to {}", grids_key(wire), text,
                                 Grid::kFinest, Grid::kCoarsest));
  return *std::move(exponents);
}

std::int64_t position_in(const GivenState& given) {
  const std::string_view text = given.metadata("position");
  const auto position = read_position(text);
  if (!position) given.refuse("", fmt::format("position \"{}\" is not a number from 0", text));
  return *position;
}

void check_tensors(const GivenState& given, const std::string& rule, const std::string& share,
                   const Named& wanted) {
  if (given.metadata("format") != kStateFormat)
    given.refuse("", fmt::format("its format is \"{}\", not \"{}\"", given.metadata("format"), kStateFormat));
  if (given.metadata("rule") != rule)
    given.refuse("", fmt::format("its rule is {}, this optimizer's is {}", given.metadata("rule"), rule));
  const std::string_view said = given.metadata("share");
  if (const std::string_view theirs = said.empty() ? kWholeShare : said; theirs != share) {
    given.refuse("", fmt::format("its share of the rule's state is {}, this worker's is {}: hierarchy, "
                                 "workers_per_node and block_bytes must be the same",
                                 theirs, share));
  }
  std::set<std::string> names;
  for (const auto& [name, tensor] : wanted) {
    names.insert(name);
    const auto there = given.state.tensors.find(name);
    if (there == given.state.tensors.end()) given.refuse("", fmt::format("there is no tensor \"{}\"", name));
    const TensorInfo mine = info_of(name, tensor), other = info_of(name, there->second);
    if (other.dtype != mine.dtype || other.shape != mine.shape)
      given.refuse(name, fmt::format("tensor \"{}\" is {}, this optimizer's is {}", name, text_of(other),
                                     text_of(mine)));
  }
  for (const auto& [name, tensor] : given.state.tensors) {
    if (!names.contains(name))
      given.refuse(name, fmt::format("tensor \"{}\" is not one of this optimizer", name));
  }
}

}  // namespace starling
