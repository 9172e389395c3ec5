#include "starling/train/recipe.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include "starling/core/error.h"
#include "starling/core/text.h"
#include "starling/core/tree.h"
#include "starling/data/class_split.h"
#include "starling/optim/options.h"
#include "starling/optim/parameter_groups.h"
#include "starling/optim/schemes/table.h"

namespace starling {

namespace {

// Declares the option that several schemes may share.
void scheme_key(Config& c, const std::string& name, SchemeValue& value) {
  const auto all = scheme_options();
  const SharedOption& shared =
      *std::ranges::find(all, name, [](const SharedOption& o) { return o.option->name; });
  const SchemeOption& option = *shared.option;
  Range range = option.range;
  std::string help = fmt::format("{}: {}", fmt::join(shared.schemes, ", "), option.meaning);
  if (option.is_automatic()) {
    range.least = -1;
    help += fmt::format("; below 0: {}", std::get<Automatic>(option.standard).how);
  }
  if (auto* const whole = std::get_if<std::int64_t>(&value)) {
    c.key(name, whole, range, help);
  } else if (auto* const number = std::get_if<double>(&value)) {
    c.key(name, number, range, help);
  } else {
    c.key(name, &std::get<std::string>(value), Choices(option.choices.begin(), option.choices.end()), help);
  }
}

// The options of the recipe's scheme. Options of other schemes that are set are included, and are
// then refused.
SchemeChoice scheme_choice(const Recipe& recipe) {
  SchemeChoice choice(recipe.mixing.scheme);
  for (const SharedOption& shared : scheme_options()) {
    const std::string name(shared.option->name);
    const SchemeValue& value =
        std::ranges::find(recipe.mixing.of_scheme, name, [](const auto& one) { return one.first; })->second;
    if (shared.option->is_automatic() && std::get<double>(value) < 0) continue;
    choice.options.emplace_back(name, value);
  }
  return choice;
}

Choices task_names() {
  Choices names;
  for (const TaskInfo* task : known_tasks()) names.emplace_back(task->name);
  return names;
}

// Which keys there are depends on data.name, so it is read first. An unknown name is left to
// Config, which knows its place and the nearest known one.
void choose_task(Recipe& recipe, const std::string& text, const std::string& file,
                 const Overrides& overrides) {
  std::string name;
  const Node root = parse_toml(text, file);
  for (const Member& section : *root.as<Node::Table>()) {
    const auto* keys = section.name == "data" ? section.node.as<Node::Table>() : nullptr;
    if (keys == nullptr) continue;
    for (const Member& key : *keys) {
      if (const auto* value = key.node.as<std::string>(); value != nullptr && key.name == "name")
        name = *value;
    }
  }
  for (const auto& [path, value] : overrides) {
    if (path == "data.name") name = value;
  }
  if (std::ranges::count(task_names(), name) > 0) recipe.data.name = name;
}

// The rising numbers between 0 and 1 in schedule.drops.
std::vector<double> drops_of(const Recipe& recipe, const std::string& where) {
  std::istringstream words(recipe.schedule.drops);
  std::vector<double> drops{0};  // and 1 behind them, so that all neighbours must rise
  for (std::string word; words >> word;) drops.push_back(parse_number<double>(word).value_or(NAN));
  drops.push_back(1);
  const auto falls = [](double before, double after) { return !(before < after); };  // NaN, too
  if (drops.size() < 3 || std::ranges::adjacent_find(drops, falls) != drops.end())
    throw UsageError(fmt::format("{}: schedule.drops = {}: wants rising numbers between 0 and 1: \"0.3 0.6\"",
                                 where, short_of(recipe.schedule.drops)));
  return {drops.begin() + 1, drops.end() - 1};
}

void check_split(const Recipe& recipe, const Config& config) {
  const std::string where = config.origin("data.split") + ": data.split";
  const ClassSplit split = read_class_split(recipe.data.split, where);
  if (split.kind != ClassSplit::Kind::iid && !task_of(recipe).has_classes)
    throw UsageError(fmt::format("{} = {}: the task {} has no classes: iid alone is allowed", where,
                                 short_of(recipe.data.split), recipe.data.name));
}

}  // namespace

SchemeValues scheme_values() {
  SchemeValues all;
  for (const SharedOption& shared : scheme_options())
    all.emplace_back(shared.option->name, default_of(*shared.option).value_or(-1.0));
  return all;
}

Config recipe_config(Recipe& r) {
  const TaskInfo& task = task_of(r);
  Config c;
  c.section("run", "how long, how often repeated, and where results go");
  c.key("seed", &r.run.seed, at_least(0),
        fmt::format("of the initial weights, {}, and of asynchronous averagings", task.drawn));
  c.key("epochs", &r.run.epochs, Range{.least = 0, .most = 1e6, .least_open = true},
        fmt::format("passes over the training {}, shared by all workers", task.examples));
  c.key("steps", &r.run.steps, at_least(0), "optimizer steps in place of epochs; 0: as epochs say");
  c.key("ends", &r.run.ends, Choices{"each", "together"},
        "each: when every worker has made its steps; together: when all of them have made as many in all, so "
        "that nobody waits for a slow one (asynchronous schemes); steps are then the mean of all workers'");
  c.key("out", &r.run.out, "folder for metrics.jsonl and summary.json");
  c.key("device", &r.run.device, Choices{"cpu", "cuda"},
        "where model and batches are; cuda: the GPU of the worker's number on this machine");
  c.key("threads", &r.run.threads, between(0, 1024),
        "torch's threads per worker; 0: cores / workers of this machine");

  c.section("data", "what is learnt from");
  c.key("name", &r.data.name, task_names(), "dataset");
  c.key("dir", &r.data.dir, fmt::format("folder of {}", task.dir));
  c.key(
      "split", &r.data.split,
      "iid: the workers share the set out in every epoch; whole: each goes through all of it; by-class, and "
      "dirichlet:ALPHA such as dirichlet:0.1: each keeps a share with few of the classes (docs/data.md); "
      "tasks with classes alone");
  task.data_keys(c, r.task);

  c.section("model", "what learns");
  task.model_keys(c, r.task);
  c.key("dtype", &r.model.dtype, Choices{"fp32", "bf16", "fp16"},
        "of the weights; bf16 and fp16: normalisation stays fp32, and the optimizer keeps fp32 masters");

  declare(c, r.optimizer);

  c.section("schedule", "the learning rate over the run");
  c.key("name", &r.schedule.name, Choices{"constant", "cosine", "inverse-sqrt", "steps"},
        "shape after the warm-up");
  c.key("warmup", &r.schedule.warmup, between(0, 1), "part of the run in which the rate rises from 0");
  c.key("final", &r.schedule.final, between(0, 1), "cosine: the last rate as part of the highest");
  c.key("drops", &r.schedule.drops, "steps: the parts of the run after which the rate falls to a tenth");

  c.section("mixing", "how workers learn from each other");
  c.key("scheme", &r.mixing.scheme, scheme_names(), "how workers mix; `starling schemes` describes them");
  c.key("topology", &r.mixing.topology,
        "who mixes with whom: a name of `starling topology --list` or a file; auto: the planner's choice "
        "(docs/planner.md); not used by schemes with rounds of their own or without neighbours");
  c.key("profile", &r.mixing.profile,
        "topology auto: file of `starling probe`, also with the compute of log.profile in it; what is not in "
        "it is measured before the first step; empty: all");
  c.key("wire", &r.mixing.wire, Choices{"fp32", "bf16", "fp16", "int8", "int4"},
        "number format between workers");
  c.key("one_in", &r.mixing.one_in, ranges::one_in,
        "random-k, with a scheme that chooses top-k: one value in so many is sent in a round; 1: all");
  c.key("every", &r.mixing.every, ranges::every,
        "H, steps from one exchange to the next, with a scheme that takes local steps; 1: each step has one");
  c.key("mean_every", &r.mixing.mean_every, ranges::mean_every,
        "steps from one exact mean of all workers to the next, from which they go on (Gossip-PGA); 0: none");
  c.key("outer", &r.mixing.outer, Choices{"none", "sgd", "nesterov"},
        "optimizer of what workers merge to: after each mean of mean_every, or without these after each "
        "exchange; nesterov with scheme local and mean_every: DiLoCo");
  c.key("outer_lr", &r.mixing.outer_lr, ranges::outer_lr,
        "its learning rate; also of schemes with an outer step of their own");
  c.key("outer_momentum", &r.mixing.outer_momentum, ranges::outer_momentum, "its momentum");
  c.key("outer_warmup", &r.mixing.outer_warmup, ranges::outer_warmup,
        "steps at the start, a multiple of mean_every, in which each exchange ends with a mean and outer "
        "steps only gather momentum (Pier); 0: none");
  c.key(
      "outer_lr_at", &r.mixing.outer_lr_at,
      "changes of outer_lr, as points STEP:VALUE with straight lines between them: \"1000:0 2000:1.1\"; two "
      "points of one step are a jump; empty: none");
  c.key("outer_momentum_at", &r.mixing.outer_momentum_at, "the same of outer_momentum; empty: none");
  for (auto& [name, value] : r.mixing.of_scheme) scheme_key(c, name, value);
  c.key("max_wait", &r.mixing.max_wait, between(0, 1e6),
        "seconds to wait for a late neighbour that is alive; 0: ten minutes");
  c.key("jump_guard", &r.mixing.jump_guard, ranges::jump_guard,
        "refuse a neighbour's block that is so many times as far from this worker's as usual, at least 2; 0: "
        "none");
  c.key("block_bytes", &r.mixing.block_bytes, between(1, 1 << 30), "largest block that is exchanged at once");
  c.key("hierarchy", &r.mixing.hierarchy, Choices{"none", "node"},
        "node: workers of a node average gradients, share the optimizer's state, and gossip as one");
  c.key("workers_per_node", &r.mixing.workers_per_node, between(0, 1 << 16), "0: as the launcher says");

  c.section("train", "the step");
  c.key("batch", &r.train.batch, between(1, 1 << 20),
        fmt::format("{} per worker and forward pass", task.batch_of));
  c.key("accumulate", &r.train.accumulate, between(1, 1 << 16),
        "forward and backward passes per optimizer step");
  c.key("autocast", &r.train.autocast, Choices{"none", "bf16"},
        "bf16: fp32 weights, and matrix products of the forward pass in bf16, as torch.autocast; tests stay "
        "in fp32");
  c.key("clip", &r.train.clip, at_least(0),
        "largest global norm of a worker's gradient, with all-reduce of their mean; 0: not clipped");
  c.key("ema", &r.train.ema, from_below(0, 1),
        "decay, such as 0.999, of a moving average of each worker's model; tests, and the model of a "
        "checkpoint, are then the average of the workers' moving averages; 0: none");
  c.key("loss_scale", &r.train.loss_scale, between(1, 0x1p100),
        "fp16 weights: what the loss is multiplied by at first; halved where a gradient overflows, and that "
        "step mixes only");
  c.key("loss_scale_steps", &r.train.loss_scale_steps, between(1, 1 << 30),
        "fp16 weights: steps without an overflow until the scale is doubled");

  c.section("log", "what is written down, and how often");
  c.key("every", &r.log.every, at_least(1), "steps per line of metrics.jsonl");
  c.key("eval_every", &r.log.eval_every, at_least(0),
        "steps between tests of the average model; 0: at the end only");
  c.key("tensorboard", &r.log.tensorboard, "write the same numbers for TensorBoard, to tensorboard/worker-R");
  c.key("timeline", &r.log.timeline,
        "write timeline-R.json, what worker R did when: see `starling timeline --help`");
  c.key("timeline_from", &r.log.timeline_from, at_least(0),
        "first step of the timeline; 0: with what comes before the first step");
  c.key("timeline_to", &r.log.timeline_to, at_least(0), "last step of the timeline; 0: the run's last");
  c.key("profile", &r.log.profile,
        "file for the time of every worker's forward, backward and updates, which `starling plan` reads; "
        "empty: none");

  c.section("checkpoint", "to go on where a run stood, in the folder checkpoints of run.out");
  c.key("every", &r.checkpoint.every, at_least(0), "steps from one to the next, and one at the end; 0: none");
  c.key("keep", &r.checkpoint.keep, between(2, 1 << 20), "how many of the newest stay");
  c.key("resume", &r.checkpoint.resume,
        "one to go on from, or the folder that holds them: then the latest; empty: a fresh run");
  c.key("model", &r.checkpoint.model,
        "safetensors file with the initial weights, under the model's names; a run that is resumed does not "
        "read it; empty: the weights follow from run.seed");
  c.key(
      "workers", &r.checkpoint.workers, Choices{"same", "copy", "average"},
      "resume: same: the number of workers stays; copy: with more or fewer, worker r takes the file r mod n "
      "of the n files; average: with more or fewer, each takes the average of all files");
  return c;
}

std::vector<RecipeKey> recipe_keys() {
  struct Meaning {
    std::string path, text;
    std::vector<std::string_view> tasks{};
  };
  std::vector<Meaning> meanings;
  for (const TaskInfo* task : known_tasks()) {
    Recipe recipe;
    recipe.data.name = task->name;
    Config config = recipe_config(recipe);
    recipe.data.name = Recipe().data.name;  // the default, whatever the task
    for (const Config::Entry& entry : config.entries()) {
      const Meaning meaning{
          .path = fmt::format("{}.{}", entry.section, entry.name),
          .text = fmt::format("{}; {} (default {})", entry.help, entry.allowed, entry.value)};
      auto same = std::ranges::find_if(meanings, [&](const Meaning& known) {
        return known.path == meaning.path && known.text == meaning.text;
      });
      if (same == meanings.end()) same = meanings.insert(meanings.end(), meaning);
      same->tasks.push_back(task->name);
    }
  }
  std::vector<RecipeKey> keys;
  for (const auto& [path, text, tasks] : meanings) {
    const std::string whose =
        tasks.size() < known_tasks().size() ? fmt::format("{}: ", fmt::join(tasks, ", ")) : "";
    const auto known = std::ranges::find(keys, path, &RecipeKey::path);
    if (known == keys.end()) {
      keys.push_back({path, whose + text});
    } else {
      known->meaning += fmt::format("; {}{}", whose, text);
    }
  }
  return keys;
}

Recipe read_recipe(const std::string& file, const Overrides& overrides) {
  return parse_recipe(read_at_most(file, Config::kMostBytes, "recipe"), file, overrides);
}

Recipe parse_recipe(const std::string& text, const std::string& origin, const Overrides& overrides,
                    const std::string& overrides_from) {
  Recipe recipe;
  choose_task(recipe, text, origin, overrides);
  Config config = recipe_config(recipe);
  config.read_text(text, origin);
  for (const auto& [path, value] : overrides) config.set(path, value, overrides_from);
  if (const auto check_task = task_of(recipe).check) check_task(recipe, config);
  check_split(recipe, config);
  check(config, recipe.optimizer);
  drops_of(recipe, config.origin("schedule.drops"));
  if (recipe.log.timeline_to > 0 && recipe.log.timeline_to < recipe.log.timeline_from) {
    throw UsageError(
        fmt::format("{}: log.timeline_to = {}: wants to be at least log.timeline_from = {}, or 0",
                    config.origin("log.timeline_to"), recipe.log.timeline_to, recipe.log.timeline_from));
  }
  return recipe;
}

std::string print_recipe(Recipe recipe) { return recipe_config(recipe).print(); }

RecipeValues recipe_values(Recipe recipe) {
  RecipeValues values;
  for (const Config::Entry& key : recipe_config(recipe).entries()) {
    values.emplace_back(key.section + "." + key.name, key.value);
  }
  return values;
}

void check_resumable(const Recipe& recipe, const RecipeValues& saved, const std::string& where,
                     bool other_workers) {
  // With a hierarchy a worker keeps the state of its own blocks only.
  const bool whole = recipe.mixing.hierarchy == "none";
  const auto free = [&](const std::string& key) {
    return key == "run.out" || key == "run.threads" || key == "run.device" || key == "data.dir" ||
           key == "data.threads" || key == "mixing.max_wait" || key == "mixing.jump_guard" ||
           key == "mixing.profile" || (key == "mixing.block_bytes" && whole) || key.starts_with("log.") ||
           key.starts_with("checkpoint.") || (key == "mixing.topology" && other_workers);
  };
  for (const auto& [key, value] : recipe_values(recipe)) {
    const auto before = std::ranges::find(saved, key, &RecipeValues::value_type::first);
    if (free(key) || before == saved.end() || before->second == value) continue;
    if (key == "mixing.topology" && recipe.mixing.topology == "auto") continue;  // the choice stays
    throw UsageError(fmt::format("checkpoint.resume: {} = {}, but the run of {} had {}: it must be the same",
                                 key, value, where, before->second));
  }
}

std::string topology_in(const RecipeValues& saved, const std::string& where) {
  Recipe before;
  Config config = recipe_config(before);
  for (const auto& [key, value] : saved) {
    if (key == "mixing.topology") config.read_text(fmt::format("[mixing]\ntopology = {}\n", value), where);
  }
  return before.mixing.topology;
}

std::uint64_t seed_of(const Recipe& recipe) { return static_cast<std::uint64_t>(recipe.run.seed); }

Rule make_rule(const Recipe& recipe) { return make_rule(recipe.optimizer); }

Options make_options(const Recipe& recipe) {
  Options options;
  options.topology = recipe.mixing.topology;
  options.scheme = scheme_choice(recipe);
  options.wire = wire_named(recipe.mixing.wire);
  options.one_in = recipe.mixing.one_in;
  options.every = recipe.mixing.every;
  options.mean_every = recipe.mixing.mean_every;
  options.outer = recipe.mixing.outer;
  options.outer_lr = recipe.mixing.outer_lr;
  options.outer_momentum = recipe.mixing.outer_momentum;
  options.outer_warmup = recipe.mixing.outer_warmup;
  options.outer_lr_at = recipe.mixing.outer_lr_at;
  options.outer_momentum_at = recipe.mixing.outer_momentum_at;
  options.seed = seed_of(recipe);
  options.hierarchy = recipe.mixing.hierarchy;
  options.workers_per_node = recipe.mixing.workers_per_node;
  options.block_bytes = recipe.mixing.block_bytes;
  options.jump_guard = recipe.mixing.jump_guard;
  options.clip = recipe.train.clip;
  if (recipe.model.dtype == "fp16") {
    options.loss_scaling =
        LossScaling{.initial = recipe.train.loss_scale, .grow_every = recipe.train.loss_scale_steps};
  }
  if (recipe.mixing.max_wait > 0) {
    options.max_wait =
        std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(recipe.mixing.max_wait * 1e3)));
  }
  return options;
}

std::unique_ptr<Optimizer> make_optimizer(const Recipe& recipe, torch::nn::Module& model,
                                          const World& world) {
  const Rule rule = make_rule(recipe);
  const Options options = make_options(recipe);
  if (recipe.optimizer.decay == "all") return std::make_unique<Optimizer>(model, rule, options, world);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (torch::optim::OptimizerParamGroup& group : groups_of(model, rule)) {
    std::vector<at::Tensor> matrices, others;
    for (const at::Tensor& p : group.params()) (p.dim() >= 2 ? matrices : others).push_back(p);
    const Rule& its = rule_of(group);
    if (!matrices.empty()) groups.emplace_back(std::move(matrices), rule_options(its));
    if (!others.empty()) groups.emplace_back(std::move(others), rule_options(without_decay(its)));
  }
  return std::make_unique<Optimizer>(model, groups, rule, options, world);
}

double learning_rate(const Recipe& recipe, std::int64_t step, std::int64_t steps) {
  const double lr = recipe.optimizer.lr;
  const double rise = std::floor(recipe.schedule.warmup * static_cast<double>(steps));
  const double now = static_cast<double>(step);
  if (now < rise) return lr * (now + 1) / rise;
  if (recipe.schedule.name == "constant") return lr;
  if (recipe.schedule.name == "inverse-sqrt") return lr * std::sqrt(std::max(1.0, rise) / (now + 1));
  if (recipe.schedule.name == "steps") {
    double rate = lr;
    for (const double drop : drops_of(recipe, "recipe"))
      if (now >= drop * static_cast<double>(steps)) rate /= 10;
    return rate;
  }
  const double t = (now - rise) / std::max(1.0, static_cast<double>(steps) - rise);
  const double final = recipe.schedule.final;
  return lr * (final + (1 - final) * (1 + std::cos(std::numbers::pi * t)) / 2);
}

}  // namespace starling
