// A recipe and its keys on a command line: RECIPE.toml [--section.key VALUE]...
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "starling/train/recipe.h"

namespace starling::cli {

struct RecipeOptions {
  std::string file;
  Overrides overrides;  // in the order in which they were given
};

// `options` lives as long as `sub`.
void add_recipe(CLI::App& sub, const std::shared_ptr<RecipeOptions>& options);
// To be called when the command line has been read: an unknown key is answered as one in a file.
void take_unknown_keys(const CLI::App& sub, RecipeOptions& options);

}  // namespace starling::cli
