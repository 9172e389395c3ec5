// A trained model on a command line: MODEL [--recipe RECIPE.toml] [--section.key VALUE]...
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli/recipe_keys.h"

namespace starling::cli {

struct TrainedOptions {
  std::string model;
  std::shared_ptr<RecipeOptions> recipe = std::make_shared<RecipeOptions>();
};

// `options` lives as long as `sub`.
void add_trained(CLI::App& sub, const std::shared_ptr<TrainedOptions>& options);

}  // namespace starling::cli
