// A recipe and its keys on a command line: RECIPE.toml [--section.key VALUE]...
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "starling/train/recipe.h"

namespace starling::cli {

struct RecipeOptions {
  std::string file;
  Overrides overrides;  // in the order of the command line
};

// `options` lives as long as `sub`. Only the help of `starling train` lists the keys; that of the
// other commands says so.
void add_recipe(CLI::App& sub, const std::shared_ptr<RecipeOptions>& options);
void add_recipe_keys(CLI::App& sub, const std::shared_ptr<RecipeOptions>& options);
// Call it after the command line has been parsed. It refuses an unknown key with the same message
// as in a file.
void take_unknown_keys(const CLI::App& sub, RecipeOptions& options);

}  // namespace starling::cli
