// A recipe: all settings of a training run, as typed fields. A section of the TOML file is a struct
// here.
#pragma once

#include <any>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "starling/core/config.h"
#include "starling/optim/optimizer.h"
#include "starling/train/optimizer_keys.h"
#include "starling/train/task.h"

namespace starling {

// The options of all schemes with their defaults.
SchemeValues scheme_values();

struct Recipe {
  struct {
    std::int64_t seed = 1;
    double epochs = 1;
    std::int64_t steps = 0;
    std::string ends = "each";
    std::string out = "out/run";
    std::string device = "cpu";
    int threads = 0;
  } run;
  struct {
    std::string name{known_tasks().front()->name};
    std::string dir;
    std::string split = "iid";
  } data;
  struct {
    std::string dtype = "fp32";
  } model;
  OptimizerKeys optimizer;
  std::any task;  // the task's own keys of [data] and [model]: see keys_in() in task.h
  struct {
    std::string name = "cosine";
    double warmup = 0;
    double final = 0;
    std::string drops = "0.3 0.6 0.8";
  } schedule;
  struct {
    std::string scheme = SchemeChoice().name;
    std::string topology = "base-2";
    std::string profile;
    std::string wire = "fp32";
    int one_in = 1;
    int every = Options().every;
    int mean_every = Options().mean_every;
    std::string outer = Options().outer;
    double outer_lr = Options().outer_lr;
    double outer_momentum = Options().outer_momentum;
    int outer_warmup = Options().outer_warmup;
    std::string outer_lr_at = Options().outer_lr_at;
    std::string outer_momentum_at = Options().outer_momentum_at;
    // Each option of any scheme; below 0: automatic, if it can be.
    SchemeValues of_scheme = scheme_values();
    double max_wait = 0;
    double jump_guard = Options().jump_guard;
    std::int64_t block_bytes = 25 << 20;
    std::string hierarchy = "none";
    int workers_per_node = 0;
  } mixing;
  struct {
    std::int64_t batch = 32;
    int accumulate = 1;
    std::string autocast = "none";
    double clip = 0;
    double ema = 0;
    double loss_scale = LossScaling{}.initial;
    int loss_scale_steps = LossScaling{}.grow_every;
  } train;
  struct {
    std::int64_t every = 20;
    std::int64_t eval_every = 0;
    bool tensorboard = false;
    bool timeline = false;
    std::int64_t timeline_from = 0;
    std::int64_t timeline_to = 0;
    std::string profile;
  } log;
  struct {
    std::int64_t every = 0;
    int keep = 2;
    std::string resume;
    std::string model;
    std::string workers = "same";
  } checkpoint;
};

// The declaration of all keys, bound to `recipe`'s fields; their present values are the defaults.
// The keys of [data] and [model] are those of the task that data.name chooses now.
Config recipe_config(Recipe& recipe);
// A key of all tasks, or of those that are named: "text: tokens in a window; a whole number ...".
struct RecipeKey {
  std::string path;     // "model.context"
  std::string meaning;  // with the allowed values and the default
};
// The keys of all tasks, each once.
std::vector<RecipeKey> recipe_keys();

using Overrides = std::vector<std::pair<std::string, std::string>>;  // {"optimizer.lr", "0.002"}
// The defaults, then the file, then the overrides. Throws UsageError.
Recipe read_recipe(const std::string& file, const Overrides& overrides = {});
// The same of a file's text; messages name its origin, and that of the overrides.
Recipe parse_recipe(const std::string& text, const std::string& origin, const Overrides& overrides = {},
                    const std::string& overrides_from = "command line");
std::string print_recipe(Recipe recipe);

// {"optimizer.lr", "0.002"}, for all keys.
using RecipeValues = std::vector<std::pair<std::string, std::string>>;
RecipeValues recipe_values(Recipe recipe);
// Checks that a saved run is resumed with the settings that it had. Throws UsageError, with both
// values, if a key differs that changes results. Folders, device, threads, patience and logging may
// differ; topology "auto" keeps the choice that was made. With other workers the topology may
// differ, too. `where` names the checkpoint.
void check_resumable(const Recipe& recipe, const RecipeValues& saved, const std::string& where,
                     bool other_workers = false);
// The saved mixing.topology.
std::string topology_in(const RecipeValues& saved, const std::string& where);

// run.seed, which is at least 0.
std::uint64_t seed_of(const Recipe& recipe);
// The recipe as settings of the optimizer. Throws UsageError for combinations that make no sense.
Rule make_rule(const Recipe& recipe);
Options make_options(const Recipe& recipe);
// The optimizer of a model. Collective, see Optimizer's constructor.
std::unique_ptr<Optimizer> make_optimizer(const Recipe& recipe, torch::nn::Module& model, const World& world);

// The learning rate of step 0, 1, .. steps-1. It rises linearly for `warmup` * steps, then follows
//   constant       lr
//   cosine         lr (final + (1 - final) (1 + cos(pi t)) / 2),   t from 0 after the warm-up to 1
//   inverse-sqrt   lr sqrt(w / (step + 1)),   w: steps of the warm-up, at least 1
//   steps          lr / 10^k,   k drops of schedule.drops * steps are over
double learning_rate(const Recipe& recipe, std::int64_t step, std::int64_t steps);

}  // namespace starling
