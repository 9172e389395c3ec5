// A study of recipes of `starling train`.
#include "starling/core/config.h"
#include "starling/core/tree.h"
#include "starling/train/recipe.h"
#include "starling/train/study.h"

namespace starling {
namespace {

class RecipeOfStudy final : public StudyRecipe {
 public:
  void read(const std::string& path) override {
    path_ = path;
    text_ = read_at_most(path, Config::kMostBytes, "recipe");
    recipe_ = parse_recipe(text_, path_);
  }
  void set(const Study::Keys& keys, const std::string& from) override {
    recipe_ = parse_recipe(text_, path_, keys, from);
  }
  void check(const std::string& key, const std::string& value, const std::string& from) const override {
    Recipe copy = recipe_;
    recipe_config(copy).set(key, value, from);
  }
  Study::Keys with(const Study::Keys& keys, const std::string& from) const override {
    return recipe_values(parse_recipe(text_, path_, keys, from));
  }
  std::string task() const override { return recipe_.data.name; }
  std::int64_t seed() const override { return recipe_.run.seed; }

 private:
  std::string path_, text_;
  Recipe recipe_;
};

}  // namespace

Study parse_study(const std::string& text, const std::string& file) {
  RecipeOfStudy recipe;
  return parse_study(text, file, recipe);
}

Study read_study(const std::string& file) {
  return parse_study(read_at_most(file, Config::kMostBytes, "study"), file);
}

}  // namespace starling
