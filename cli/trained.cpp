#include "cli/trained.h"

#include <fmt/format.h>
#include <torch/nn/module.h>

#include "cli/workers.h"
#include "starling/core/error.h"
#include "starling/train/learner.h"
#include "starling/train/trained.h"
#include "starling/train/trainer.h"

namespace starling::cli {

void add_trained(CLI::App& sub, const std::shared_ptr<TrainedOptions>& options) {
  sub.add_option("model", options->model,
                 "a checkpoint, a folder of several, which means the latest, or a safetensors file")
      ->type_name("MODEL")
      ->required();
  sub.add_option("--recipe", options->recipe->file,
                 "the recipe, if the file does not hold it; `starling checkpoint consensus` writes it")
      ->type_name("RECIPE.toml");
  add_recipe_keys(sub, options->recipe);
}

LoadedModel load_trained(const TrainedOptions& options, std::string_view command, std::string_view task) {
  const TrainedModel trained(options.model, warn_to_stderr);
  LoadedModel loaded{.recipe = trained.recipe(options.recipe->file, options.recipe->overrides), .module = {}};
  if (loaded.recipe.data.name != task)
    throw UsageError(
        fmt::format("data.name = {}: {} wants a model of {}", loaded.recipe.data.name, command, task));
  loaded.module = task_of(loaded.recipe).model(loaded.recipe);
  const at::Device device = device_of(loaded.recipe, 0);
  limit_threads(loaded.recipe, World());
  trained.load_into(*loaded.module);
  loaded.module->eval();
  loaded.module->to(device);
  return loaded;
}

}  // namespace starling::cli
