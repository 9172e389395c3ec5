#include "cli/recipe_keys.h"

namespace starling::cli {

void add_recipe(CLI::App& sub, const std::shared_ptr<RecipeOptions>& options) {
  sub.add_option("recipe", options->file, "a TOML file, such as recipes/fashion-mnist.toml")
      ->type_name("RECIPE.toml")
      ->required();
  add_recipe_keys(sub, options);
}

void add_recipe_keys(CLI::App& sub, const std::shared_ptr<RecipeOptions>& options) {
  for (const auto& [path, meaning] : recipe_keys()) {
    sub.add_option_function<std::string>(
           "--" + path,
           [options, path = path](const std::string& value) { options->overrides.emplace_back(path, value); },
           meaning)
        ->type_name("")
        ->group("Keys of the recipe, which override the file")
        ->take_last();
  }
  sub.allow_extras();
}

void take_unknown_keys(const CLI::App& sub, RecipeOptions& options) {
  for (const std::string& extra : sub.remaining()) {
    const std::string name = extra.substr(0, extra.find('='));
    if (!name.starts_with("--") || name.find('.') == std::string::npos)
      throw CLI::ExtrasError(sub.get_name(), {extra});
    options.overrides.emplace_back(name.substr(2), "");
    break;
  }
}

}  // namespace starling::cli
