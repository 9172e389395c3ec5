#include "starling/train/trained.h"

#include <filesystem>
#include <vector>

#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include "starling/core/error.h"
#include "starling/core/text.h"
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

// Copies them to the model's tensor of that name.
void load(const TensorInfo& info, std::vector<std::byte> bytes, at::Tensor& to, const std::string& path) {
  const auto type = torch_type(info.dtype);
  if (!type)
    throw Error(
        fmt::format("{}: tensor {} is {}, which torch has not", path, short_of(info.name), info.dtype));
  if (info.shape != to.sizes().vec()) {
    throw Error(fmt::format("{}: tensor {} is {}, the model of the recipe wants {}", path,
                            short_of(info.name), text_of(info.shape), text_of(to.sizes().vec())));
  }
  to.copy_(at::from_blob(bytes.data(), info.shape, *type));
}

}  // namespace

TrainedModel::TrainedModel(const std::string& path, const Log& log) : path_(path), source_(open(path, log)) {}

Recipe TrainedModel::recipe(const std::string& recipe_file, const Overrides& overrides) const {
  if (!recipe_file.empty()) return read_recipe(recipe_file, overrides);
  const Metadata metadata = std::visit([](const auto& source) { return source.metadata(); }, source_);
  const auto found = metadata.find(kRecipe);
  if (found == metadata.end())
    throw UsageError(
        fmt::format("{} does not say with which recipe it was trained: name one, --recipe FILE", path_));
  return parse_recipe(found->second, fmt::format("{}: {}", path_, kRecipe), overrides);
}

void TrainedModel::load_into(torch::nn::Module& model) const {
  const c10::AutoGradMode no_gradient(false);
  std::map<std::string, at::Tensor> wanted;
  for (const auto& tensor : model.named_parameters()) wanted.emplace(tensor.key(), tensor.value());
  for (const auto& tensor : model.named_buffers()) wanted.emplace(tensor.key(), tensor.value());
  std::visit(
      [&](const auto& source) {
        for (const TensorInfo& info : source.tensors()) {
          const auto to = wanted.find(info.name);
          if (to == wanted.end())
            throw Error(
                fmt::format("{}: the model of the recipe has no tensor {}", path_, short_of(info.name)));
          load(info, read(source, info), to->second, path_);
          wanted.erase(to);
        }
      },
      source_);
  if (!wanted.empty())
    throw Error(fmt::format("{}: there is no tensor {}, which the model of the recipe has", path_,
                            short_of(wanted.begin()->first)));
}

}  // namespace starling
