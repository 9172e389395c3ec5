#include "starling/train/trained.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>
#include <system_error>
#include <vector>

#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include "starling/checkpoint/consensus.h"
#include "starling/checkpoint/safetensors.h"
#include "starling/core/error.h"
#include "starling/core/text.h"

namespace starling {

namespace {

class TemporaryFolder {
 public:
  TemporaryFolder() : path_(std::filesystem::temp_directory_path() / "starling-XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr)
      throw Error(fmt::format("{}: cannot be made: {}", path_, std::strerror(errno)));
  }
  ~TemporaryFolder() {
    std::error_code none;
    std::filesystem::remove_all(path_, none);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

void read_into(const at::Tensor& to, const std::string& name, const SafetensorsReader& file,
               const std::string& checkpoint) {
  const TensorInfo* const saved = file.find(name);
  const char* const dtype = to.scalar_type() == at::kLong ? "I64" : "F32";
  if (saved == nullptr || saved->dtype != dtype || saved->shape != to.sizes().vec())
    throw Error(
        fmt::format("{}: holds no {} of the type and shape that its recipe's model has", checkpoint, name));
  file.read(*saved, {static_cast<std::byte*>(to.data_ptr()), to.nbytes()});
}

}  // namespace

Trained read_trained(const std::string& path) {
  const Checkpoint checkpoint(path);
  Trained trained{.recipe = recipe_in(checkpoint.manifest().recipe, checkpoint.folder()), .model = {}};
  trained.recipe.model.dtype = "fp32";
  trained.model = task_of(trained.recipe).model(trained.recipe);

  const TemporaryFolder folder;
  const std::string average = folder.path() + "/average.safetensors";
  write_consensus(checkpoint, average);
  const SafetensorsReader file(average);
  const c10::AutoGradMode no_gradient(false);
  for (const auto& p : trained.model->named_parameters())
    read_into(p.value(), p.key(), file, checkpoint.folder());
  for (const auto& b : trained.model->named_buffers())
    read_into(b.value(), b.key(), file, checkpoint.folder());
  return trained;
}

}  // namespace starling
