// starling eval MODEL: tests a trained model on the test set of its task.
#include <CLI/CLI.hpp>
#include <memory>

#include <fmt/format.h>
#include <torch/nn/module.h>

#include "cli/commands.h"
#include "cli/json.h"
#include "cli/trained.h"
#include "cli/workers.h"
#include "starling/core/input.h"
#include "starling/train/evaluate.h"
#include "starling/train/learner.h"
#include "starling/train/trained.h"
#include "starling/train/trainer.h"

namespace starling::cli {

namespace {

struct EvalOptions {
  std::shared_ptr<TrainedOptions> trained = std::make_shared<TrainedOptions>();
  bool json = false;
};

int eval(const EvalOptions& options) {
  const TrainedModel model(options.trained->model, warn_to_stderr);
  const Recipe recipe = model.recipe(options.trained->recipe->file, options.trained->recipe->overrides);
  const at::Device device = device_of(recipe, 0);
  limit_threads(recipe, World());
  const TaskInfo& info = task_of(recipe);
  const MakeTask make_task = named_input([&] {
    info.find_data(recipe);
    return info.load(recipe);
  });
  const std::unique_ptr<Task> task = make_task({});
  model.load_into(task->model());
  task->model().to(device);
  const Score score = test(*task, warn_to_stderr);
  if (options.json) {
    print_json(
        {{"examples", task->test_examples()}, {"test_loss", score.loss}, {info.score.name, score.value}});
  } else {
    fmt::print("test {:<24} {}\ntest loss                     {:.4f}\nexamples                      {}\n",
               info.score.name, info.score.text(score.value), score.loss, task->test_examples());
  }
  return 0;
}

}  // namespace

void add_eval(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("eval", "Test a trained model");
  sub->footer("  starling eval out/run/checkpoints");
  auto options = std::make_shared<EvalOptions>();
  add_trained(*sub, options->trained);
  sub->add_flag("--json", options->json, "print JSON instead of a table");
  sub->callback([sub, options, &command] {
    take_unknown_keys(*sub, *options->trained->recipe);
    command = [options] { return eval(*options); };
  });
}

}  // namespace starling::cli
