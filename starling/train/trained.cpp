#include "starling/train/trained.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <vector>

#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include "starling/core/error.h"
#include "starling/core/input.h"
#include "starling/core/text.h"
#include "starling/models/published.h"
#include "starling/optim/state_file.h"

namespace starling {
namespace {

std::variant<SafetensorsReader, AverageModel> open(const std::string& path, const Log& log) {
  std::error_code none;
  if (std::filesystem::is_directory(path, none)) return AverageModel(Checkpoint(path), log);
  return SafetensorsReader(path);
}

std::vector<std::byte> read(const AverageModel& model, const TensorInfo& tensor) {
  return model.read(tensor);
}
std::vector<std::byte> read(const SafetensorsReader& file, const TensorInfo& tensor) {
  std::vector<std::byte> bytes(tensor.bytes());
  file.read(tensor, bytes);
  return bytes;
}

std::string text_of(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::map<std::string, at::Tensor> tensors_of(const torch::nn::Module& model) {
  std::map<std::string, at::Tensor> all;
  for (const auto& tensor : model.named_parameters()) all.emplace(tensor.key(), tensor.value());
  for (const auto& tensor : model.named_buffers()) all.emplace(tensor.key(), tensor.value());
  return all;
}

// The tensors of a file by the model's names; those that it has no use for are left out.
std::map<std::string, const TensorInfo*> named(const std::vector<TensorInfo>& tensors,
                                               const torch::nn::Module& model, const std::string& path) {
  const auto* const published = dynamic_cast<const Published*>(&model);
  std::map<std::string, const TensorInfo*> all;
  for (const TensorInfo& info : tensors) {
    const std::string name = published != nullptr ? published->own_name(info.name) : info.name;
    if (!name.empty() && !all.emplace(name, &info).second)
      throw UsageError(fmt::format("{}: tensor {} is there twice, by two names", path, short_of(name)));
  }
  return all;
}

// "; the nearest name there is ..", if one is near.
std::string nearest(const std::string& name, const std::vector<std::string>& names) {
  const std::string found = nearest_name(name, names);
  return found.empty() ? "" : fmt::format("; the nearest name there is {}", short_of(found));
}

at::ScalarType type_of(const TensorInfo& info, const std::string& path) {
  if (const auto type = torch_type(info.dtype)) return *type;
  throw UsageError(
      fmt::format("{}: tensor {} is {}, which torch has not", path, short_of(info.name), info.dtype));
}

// The file's tensor `info` is to become the model's tensor `to`.
void check_kind(const TensorInfo& info, const at::Tensor& to, const std::string& path) {
  if (at::isFloatingType(type_of(info, path)) != to.is_floating_point())
    throw UsageError(fmt::format("{}: tensor {} is {}, the model of the recipe wants {}", path,
                                 short_of(info.name), info.dtype,
                                 to.is_floating_point() ? "real numbers" : "integers"));
  if (info.shape != to.sizes().vec()) {
    throw UsageError(fmt::format("{}: tensor {} is {}, the model of the recipe wants {}", path,
                                 short_of(info.name), text_of(info.shape), text_of(to.sizes().vec())));
  }
}

}  // namespace

TrainedModel::TrainedModel(const std::string& path, const Log& log)
    : path_(path), source_(named_input([&] { return open(path, log); })) {}

Recipe TrainedModel::recipe(const std::string& recipe_file, const Overrides& overrides) const {
  if (!recipe_file.empty()) return read_recipe(recipe_file, overrides);
  const Metadata metadata = std::visit([](const auto& source) { return source.metadata(); }, source_);
  const auto found = metadata.find(kRecipe);
  if (found == metadata.end())
    throw UsageError(
        fmt::format("{} does not say with which recipe it was trained: name one, --recipe FILE", path_));
  return parse_recipe(found->second, fmt::format("{}: {}", path_, kRecipe), overrides);
}

void TrainedModel::check(const torch::nn::Module& model) const {
  const auto wanted = tensors_of(model);
  const auto& there = std::visit([](const auto& source) -> const auto& { return source.tensors(); }, source_);
  const auto given = named(there, model, path_);
  std::vector<std::string> ours, theirs;
  for (const auto& [name, tensor] : wanted) ours.push_back(name);
  for (const auto& [name, info] : given) theirs.push_back(name);
  for (const auto& [name, info] : given) {
    const auto to = wanted.find(name);
    if (to == wanted.end())
      throw UsageError(fmt::format("{}: the model of the recipe has no tensor {}{}", path_,
                                   short_of(info->name), nearest(name, ours)));
    check_kind(*info, to->second, path_);
  }
  for (const std::string& name : ours) {
    if (!given.contains(name))
      throw UsageError(fmt::format("{}: there is no tensor {}, which the model of the recipe has{}", path_,
                                   short_of(name), nearest(name, theirs)));
  }
}

void TrainedModel::load_into(torch::nn::Module& model) const {
  check(model);
  const c10::AutoGradMode no_gradient(false);
  auto tensors = tensors_of(model);
  std::visit(
      [&](const auto& source) {
        for (const auto& [name, info] : named(source.tensors(), model, path_)) {
          std::vector<std::byte> bytes = named_input([&, info = info] { return read(source, *info); });
          tensors.at(name).copy_(at::from_blob(bytes.data(), info->shape, type_of(*info, path_)));
        }
      },
      source_);
}

}  // namespace starling
