// A study: runs that differ in a few settings, from a TOML file, for `starling study`.
//
//   title = "Skewed classes"
//   recipe = "../fashion-mnist.toml"    # beside this file
//   run = "simulate"                    # or "train": real workers
//   workers = 8                         # or a list in [grid]
//   [set]                               # keys of the recipe, for all runs
//   run.epochs = 2
//   [simulate]                          # options of `starling simulate`
//   gradient = 0.1
//   [grid]                              # every combination is an arm, run with every seed
//   run.seed = [1, 2, 3]
//   data.split = ["iid", "by-class"]
//   mixing.wire = ["fp32", "int8"]
//   method = [{ name = "slow", optimizer.lr = 0.1 }, { name = "fast", optimizer.lr = 1.0 }]
//   [baseline]                          # arms are compared with the one that has these values
//   mixing.wire = "fp32"
//   [ablation."no warm-up"]             # every arm again with these keys, compared with that arm
//   schedule.warmup = 0.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace starling {

struct Study {
  using Keys = std::vector<std::pair<std::string, std::string>>;  // {"optimizer.lr", "0.002"}
  static constexpr std::size_t kMostRuns = 2000;
  static constexpr const char* kAblation = "ablation";  // the last axis, if there are ablations
  static constexpr const char* kNothing = "none";       // its first value

  struct Axis {
    std::string name;   // "mixing.scheme"
    std::string shown;  // "scheme"
    std::vector<std::string> values;
  };
  struct Arm {
    std::vector<std::string> values;      // of each axis
    std::optional<std::size_t> baseline;  // the arm that it is compared with
    std::size_t panel = 0;                // arms with the same number share their charts
  };
  struct Run {
    std::size_t arm = 0;
    std::int64_t seed = 0;
    int workers = 0;
    std::string name;      // of its folder: "scheme=cta,split=iid,seed=1"
    Keys keys;             // of the recipe
    std::string settings;  // a line for each; the run is done again if they change
  };

  std::string file, title;
  std::string recipe;  // path
  std::string task;    // data.name
  std::string out;     // folder; default: out/ and the name of the file
  bool simulated = true;
  Keys cluster;  // options of `starling simulate` without dashes: {"gradient", "0.1"}
  std::vector<Axis> axes;
  std::vector<Arm> arms;
  std::vector<std::int64_t> seeds;
  std::vector<Run> runs;  // by arm, then by seed

  // "scheme cta, split iid": the values of the axes with several values.
  std::string name_of(const Arm& arm) const;
};

// The recipe that a study is of. Its functions throw UsageError.
class StudyRecipe {
 public:
  virtual ~StudyRecipe() = default;
  virtual void read(const std::string& path) = 0;
  // For all runs. `from`: the place of the keys, for messages.
  virtual void set(const Study::Keys& keys, const std::string& from) = 0;
  virtual void check(const std::string& key, const std::string& value, const std::string& from) const = 0;
  // All keys and their values, with these ones in place of those of set().
  virtual Study::Keys with(const Study::Keys& keys, const std::string& from) const = 0;
  virtual std::string task() const = 0;
  virtual std::int64_t seed() const = 0;
};

// Throws UsageError: for the file itself, and for a run whose recipe is refused.
Study read_study(const std::string& file);
// The same of a file's text.
Study parse_study(const std::string& text, const std::string& file);
Study parse_study(const std::string& text, const std::string& file, StudyRecipe& recipe);

}  // namespace starling
