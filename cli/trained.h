// A trained model on a command line: MODEL [--recipe RECIPE.toml] [--section.key VALUE]...
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <string_view>

#include "cli/recipe_keys.h"

namespace starling::cli {

struct TrainedOptions {
  std::string model;
  std::shared_ptr<RecipeOptions> recipe = std::make_shared<RecipeOptions>();
};

// `options` lives as long as `sub`.
void add_trained(CLI::App& sub, const std::shared_ptr<TrainedOptions>& options);

struct LoadedModel {
  Recipe recipe;
  std::shared_ptr<torch::nn::Module> module;  // with its weights, in eval(), on the recipe's device
};
// For a command that wants a model of this task (data.name). Sets torch's threads. Throws
// UsageError, also if the model is of another task.
LoadedModel load_trained(const TrainedOptions& options, std::string_view command, std::string_view task);

}  // namespace starling::cli
