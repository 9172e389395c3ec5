#include "cli/recipe_keys.h"

#include <fmt/format.h>

namespace starling::cli {

namespace {

constexpr const char* kListing = "train";  // the command whose help lists all keys

}  // namespace

void add_recipe(CLI::App& sub, const std::shared_ptr<RecipeOptions>& options) {
  sub.add_option("recipe", options->file, "a TOML file, such as recipes/fashion-mnist.toml")
      ->type_name("RECIPE.toml")
      ->required();
  add_recipe_keys(sub, options);
}

void add_recipe_keys(CLI::App& sub, const std::shared_ptr<RecipeOptions>& options) {
  const auto add = [&](const std::string& path, const std::string& meaning) {
    const auto take = [options, path](const std::string& value) {
      options->overrides.emplace_back(path, value);
    };
    return sub.add_option_function<std::string>("--" + path, take, meaning)->type_name("")->take_last();
  };
  const bool lists = sub.get_name() == kListing;
  for (const auto& [path, meaning] : recipe_keys())
    add(path, meaning)->group(lists ? "Keys of the recipe, which override the file" : "");
  if (!lists)
    add("section.key", fmt::format("set a key of the recipe; `starling {} --help` lists all", kListing))
        ->type_name("VALUE");
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
