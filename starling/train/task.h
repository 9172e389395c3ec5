// A task: what is learnt, from which data, and how well it is learnt.
//
// One file in train/tasks/ holds a task whole: its keys in the recipe, its data, model, loss and
// score. CMakeLists.txt there lists these files, and the table of tasks is made from that list. The
// rest of train/ knows a task by this header alone; data/ and models/ are libraries for tasks.
//
//   TaskInfo   a constant that describes the task; the table holds one of each
//   MakeTask   the task's data, loaded once per process, which the workers of the process share
//   Task       one worker's model and batches
#pragma once

#include <any>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "starling/core/log.h"
#include "starling/data/deal.h"

namespace torch::nn {
class Module;
}

namespace starling {

class Config;
struct Recipe;

// The inputs and targets of one forward pass. Only the task knows what each tensor is.
using Batch = std::vector<at::Tensor>;
// The batch on the device of the model's parameters. Without a copy if it is there.
Batch beside(const torch::nn::Module& model, const Batch& batch);

// The result of a test on a part of the test set. Tallies add up over disjoint parts, and so over
// workers.
struct Tally {
  std::int64_t examples = 0;
  double loss = 0;  // sum
  std::vector<std::int64_t>
      counts;  // right answers, tokens, n-grams: as many of them for every part, an empty one too
};

struct Score {
  double value = 0;  // accuracy, BLEU, perplexity: see ScoreInfo
  double loss = 0;   // mean
};

struct ScoreInfo {
  // The key in summary.json, where "worst_" precedes it for the worst worker, and the tag in event
  // files.
  std::string_view name;
  bool higher_is_better = true;
  bool percent = false;  // the value is a share; messages and charts show it in percent

  double shown(double value) const { return percent ? 100 * value : value; }
  std::string text(double value) const;  // "87.02 %"
};

// One worker's part in a task. One thread calls it.
class Task {
 public:
  virtual ~Task() = default;

  virtual torch::nn::Module& model() = 0;
  // How the training set is dealt to the workers. An epoch is one pass of all of them together.
  virtual const Deal& deal() const = 0;
  std::int64_t batches_per_epoch() const { return deal().batches_per_epoch(); }  // of one worker
  // Batch 0, 1, .. of this worker, counted on through all epochs. It depends on this number, on
  // run.seed and the Drawer alone, so the step is the data cursor of a checkpoint.
  virtual Batch batch(std::int64_t number) = 0;
  // The mean loss over the batch, which may be on another device than the model. backward() starts
  // from it.
  virtual at::Tensor loss(const Batch& batch) = 0;

  virtual std::int64_t test_examples() const = 0;  // below 2^24: workers add them up as floats
  // Tests the model on examples first..last-1 of the test set. The caller has disabled gradients
  // and called eval().
  virtual Tally test(std::int64_t first, std::int64_t last) = 0;
  virtual Score score(const Tally& whole) const = 0;  // of the whole test set

  // The examples of each class in each worker's share of the training set (data/class_split.h), by
  // rank. All workers know the same. Empty: the task has no classes.
  virtual std::vector<std::vector<std::int64_t>> class_counts() const { return {}; }

  // Lines for the log since the last call: what batch() and test() left out.
  virtual std::vector<std::string> warnings() { return {}; }
};

using MakeTask = std::function<std::unique_ptr<Task>(const Drawer& who)>;

struct TaskInfo {
  std::string_view name;      // data.name
  std::string_view examples;  // the members of the training set, in the plural: "images"
  std::string_view batch_of;  // what train.batch counts: "images", "tokens"
  std::string_view drawn;     // what run.seed decides about the batches, for that key's help
  std::string_view dir;       // the files in the folder data.dir, for that key's help
  ScoreInfo score;
  bool has_classes = false;  // then it obeys data.split

  // Declare the task's other keys in the sections [data] and [model]. `keys` holds them; see
  // keys_in().
  void (*data_keys)(Config& config, std::any& keys);
  void (*model_keys)(Config& config, std::any& keys);
  // Throws UsageError for a combination of values that the ranges do not exclude; `config` knows
  // their origin. Null: there is none.
  void (*check)(const Recipe& recipe, const Config& config) = nullptr;
  // Throws Error if data is missing. Reads none of it.
  void (*find_data)(const Recipe& recipe);
  // The model with its initial values, which run.seed decides.
  std::shared_ptr<torch::nn::Module> (*model)(const Recipe& recipe);
  // Reads the data. Throws Error if it is missing or damaged.
  MakeTask (*load)(const Recipe& recipe);
};

// Logs the task's warnings.
void log_warnings(Task& task, const Log& log);

// data.dir, the folder of `files`. Throws UsageError if it is not set.
const std::string& needed_dir(const Recipe& recipe, std::string_view files);

// Declares the key of the section [model] that chooses whether blocks keep their activations.
void recompute_key(Config& config, bool* recompute);

// The table, in the order of the list in train/tasks/CMakeLists.txt. The first one is the default.
std::span<const TaskInfo* const> known_tasks();
// The task that data.name chooses. Throws UsageError if there is none.
const TaskInfo& task_of(const Recipe& recipe);

// A task's own struct of keys within Recipe::task, with its defaults as long as the task has not
// declared them.
template <class Keys>
Keys& keys_in(std::any& keys) {
  if (std::any_cast<Keys>(&keys) == nullptr) keys = Keys();
  return *std::any_cast<Keys>(&keys);
}
template <class Keys>
const Keys& keys_in(const std::any& keys) {
  static const Keys kDefaults;
  const auto* declared = std::any_cast<Keys>(&keys);
  return declared != nullptr ? *declared : kDefaults;
}

}  // namespace starling
