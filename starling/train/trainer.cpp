#include "starling/train/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "starling/core/clock.h"
#include "starling/core/error.h"
#include "starling/core/failpoint.h"
#include "starling/core/file.h"
#include "starling/core/input.h"
#include "starling/core/phases.h"
#include "starling/kernels/update.h"
#include "starling/optim/checkpoint.h"
#include "starling/optim/checkpoint_writer.h"
#include "starling/optim/membership.h"
#include "starling/optim/options.h"
#include "starling/optim/schemes/table.h"
#include "starling/train/auto_topology.h"
#include "starling/train/compute.h"
#include "starling/train/ema.h"
#include "starling/train/evaluate.h"
#include "starling/train/learner.h"
#include "starling/train/logbook.h"
#include "starling/train/trained.h"
#include "starling/world/environment.h"

namespace starling {

namespace {

std::string checkpoints_of(const Recipe& recipe) { return recipe.run.out + "/checkpoints"; }

OtherWorkers other_workers(const Recipe& recipe) {
  if (recipe.checkpoint.workers == "copy") return OtherWorkers::copy;
  return recipe.checkpoint.workers == "average" ? OtherWorkers::average : OtherWorkers::refuse;
}

// Whether it lies in this folder of checkpoints.
bool is_of(const Checkpoint& checkpoint, const std::string& root) {
  std::error_code none;
  return std::filesystem::equivalent(std::filesystem::path(checkpoint.folder()) / "..", root, none);
}

// The checkpoint that the recipe resumes, if it names one: it fits the recipe and the number of
// workers.
std::optional<Checkpoint> find_checkpoint(const Recipe& recipe, int workers) {
  const std::string root = checkpoints_of(recipe);
  std::optional<Checkpoint> start;
  if (!recipe.checkpoint.resume.empty()) {
    start = named_input([&] { return Checkpoint(recipe.checkpoint.resume); });
    check_workers(*start, workers, other_workers(recipe));
    check_resumable(recipe, start->manifest().recipe, start->folder(), start->manifest().workers != workers);
  }
  if (recipe.checkpoint.every == 0 || !has_checkpoints(root)) return start;
  if (!start || !is_of(*start, root)) {
    throw UsageError(
        fmt::format("{} holds the checkpoints of another run: resume it (--resume {}), remove them, or "
                    "give another folder (--out)",
                    root, root));
  }
  return start;
}

// Whether this worker has the lowest rank of those that are left. False after they went on without
// it. Collective, since Statistics::lost does not name workers that ended by themselves.
bool speaks(Optimizer& optimizer) {
  const std::int64_t mine = -optimizer.world().rank;
  std::int64_t lowest = mine;
  return optimizer.maximum({&lowest, 1}) > 0 && lowest == mine;
}

// Tests the result and summarizes the run over all workers that are left.
Summary summarize(const Recipe& recipe, const World& world, Optimizer& optimizer, Task& task, const Ema* ema,
                  const Logbook& log, std::int64_t steps) {
  const ScoreInfo& info = task_of(recipe).score;
  const Statistics statistics = optimizer.statistics();  // before the tests, which send too
  const AverageScore test = test_average(optimizer, task, ema);
  const double worst = test_worst(optimizer, task, info);
  constexpr double kMega = 1e6;  // bytes are averaged as floats, in MB
  std::array<float, 10> means{static_cast<float>(log.loss()),
                              static_cast<float>(log.seconds()),
                              static_cast<float>(log.waiting_share(statistics)),
                              static_cast<float>(static_cast<double>(statistics.bytes_sent) / kMega),
                              static_cast<float>(static_cast<double>(statistics.payload_sent) / kMega),
                              static_cast<float>(statistics.aborted),
                              static_cast<float>(statistics.directed_aborted),
                              static_cast<float>(statistics.skipped),
                              static_cast<float>(statistics.questions.unanswered),
                              static_cast<float>(statistics.jumped)};
  const int left = std::max(optimizer.average(means), 1);
  std::vector<std::int64_t> samples(static_cast<std::size_t>(world.size));  // by rank; not as floats
  samples[static_cast<std::size_t>(world.rank)] = log.samples();
  optimizer.maximum(samples);
  Summary summary = begun_summary(recipe, world.size);
  summary.workers_lost = world.size - left;
  summary.steps = steps;
  summary.samples = std::accumulate(samples.begin(), samples.end(), std::int64_t{0});
  summary.seconds = means[1];
  summary.loss = means[0];
  summary.test_loss = test.score.loss;
  summary.score = test.score.value;
  summary.worst_score = worst;
  summary.consensus_distance = test.consensus_distance;
  summary.bytes_sent_per_worker = static_cast<std::uint64_t>(std::llround(double{means[3]} * kMega));
  summary.payload_sent_per_worker = static_cast<std::uint64_t>(std::llround(double{means[4]} * kMega));
  summary.waiting_share = means[2];
  summary.blocks_aborted = means[5];
  summary.blocks_jumped = means[9];
  summary.directed_aborted = means[6];
  summary.questions_unanswered = means[8];
  summary.steps_skipped = means[7];
  summary.class_counts = task.class_counts();
  return summary;
}

bool begins_with_model(const Recipe& recipe) {
  return !recipe.checkpoint.model.empty() && recipe.checkpoint.resume.empty();
}

TrainedModel first_model(const Recipe& recipe) {
  const std::string& path = recipe.checkpoint.model;
  if (std::error_code none; std::filesystem::is_directory(path, none))
    throw UsageError(
        fmt::format("checkpoint.model = {}: is a folder: wants a safetensors file, such as "
                    "`starling checkpoint consensus` writes",
                    path));
  return {path, [](Level, const std::string&) {}};
}

constexpr std::size_t kProfileSpans = std::size_t{1} << 17;  // if only a profile is recorded

std::shared_ptr<Timeline> make_timeline(const Recipe& recipe, const World& world) {
  TimelineOptions options{.from = recipe.log.timeline_from};
  if (!recipe.log.timeline) options = {.from = 1, .most = kProfileSpans};
  if (recipe.log.timeline_to > 0) options.to = recipe.log.timeline_to;
  return std::make_shared<Timeline>(world.rank, world.size, options);
}

// The run is over, so what cannot be written costs that file and a warning, no more.
void write_at_end(const World& world, const std::function<void()>& write) {
  try {
    write();
  } catch (const Error& failure) {
    world.log(Level::warning, fmt::format("the run is done, but a file is missing: {}", failure.what()));
  }
}

void write_timeline(const Recipe& recipe, const World& world) {
  write_at_end(
      world, [&] { world.timeline->write(fmt::format("{}/timeline-{}.json", recipe.run.out, world.rank)); });
  if (const std::size_t dropped = world.timeline->dropped()) {
    world.log(Level::warning, fmt::format("the timeline was full: its last {} spans are missing; "
                                          "log.timeline_from and log.timeline_to choose steps",
                                          dropped));
  }
}

// The workers exchange their recordings through the store, and the one that speaks writes the file.
void write_compute(const World& world, const std::vector<std::int64_t>& sizes, const Result& result,
                   const std::string& path) {
  const auto key = [](int rank) { return fmt::format("compute/{}", rank); };
  const RecordedCompute mine = recorded_compute(world.timeline->spans(), sizes);
  world.store->set(key(world.rank), print_profile(mine.profile));
  if (!result.speaks) return;
  if (result.summary.workers_lost > 0) {
    return world.log(Level::warning, fmt::format("{}: not written: {} of {} workers are missing", path,
                                                 result.summary.workers_lost, world.size));
  }
  Profile all = mine.profile;
  all.compute.clear();
  for (int rank = 0; rank < world.size; ++rank) {
    const std::string said = world.value_of(rank, key(rank), world.timeouts.meet);
    all.compute.push_back(parse_profile(said, fmt::format("worker {}", rank)).compute.front());
  }
  write_text(path, print_profile(in_order(all, mine.order)));
}

}  // namespace

Summary begun_summary(const Recipe& recipe, int workers) {
  const SchemeInfo& scheme = scheme_info(recipe.mixing.scheme);
  Summary summary;
  summary.scheme = recipe.mixing.scheme;
  summary.schedule = scheme.uses_topology() ? recipe.mixing.topology : recipe.mixing.scheme;
  summary.rule = recipe.optimizer.rule;
  summary.wire = recipe.mixing.wire;
  summary.one_in = recipe.mixing.one_in;
  summary.workers = workers;
  summary.score_name = task_of(recipe).score.name;
  summary.bytes_computed = scheme.traits.path == Path::gradients;
  summary.seed = recipe.run.seed;
  return summary;
}

void limit_threads(const Recipe& recipe, const World& world) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  at::set_num_threads(recipe.run.threads > 0 ? recipe.run.threads : std::max(1, cores / world.local_size));
  at::set_num_interop_threads(1);
}

void leave_phases(const Recipe& recipe, const World& world) {
  try {
    show_phases(std::make_unique<PhaseBoard>(
        recipe.run.out + "/phases", PhaseOwner{world.rank, world.size, restarts_of(process_variables())}));
  } catch (const Error& failure) {
    world.log(Level::warning, fmt::format("{}: nobody sees the phases of this worker", failure.what()));
  }
}

void check_settings(const Recipe& recipe, int workers, int local_workers) {
  check_auto_topology(recipe, workers);
  Options options = make_options(recipe);
  if (chooses_topology(recipe)) options.topology = schedules_for(options, workers, local_workers).front();
  check_options(options, workers, local_workers, false);
  if (recipe.run.ends == "together" && !averages_in_pairs(options)) {
    throw UsageError(fmt::format("run.ends = together: with scheme {} all workers make as many steps: each",
                                 recipe.mixing.scheme));
  }
  const std::string reason = needs_float32(options, false);
  if (recipe.model.dtype != "fp32" && !reason.empty())
    throw UsageError(fmt::format("model.dtype = {}: {}", recipe.model.dtype, reason));
  if (!recipe.log.profile.empty() && recipe.mixing.hierarchy != "none")
    throw UsageError(
        "log.profile: with mixing.hierarchy each worker updates its own blocks only: record without");
}

void check_machine(const Recipe& recipe) {
  kernels::best_kernels();  // throws if STARLING_ISA is wrong
  device_of(recipe, 0);
  named_input([&] { task_of(recipe).find_data(recipe); });
}

void check_recipe(const Recipe& recipe, int workers, int local_workers) {
  check_settings(recipe, workers, local_workers);
  check_machine(recipe);
  find_checkpoint(recipe, workers);
  if (begins_with_model(recipe)) first_model(recipe).check(*task_of(recipe).model(recipe));
}

void check_restarts(const Recipe& recipe, int workers) {
  if (workers < 2)
    throw UsageError("--restart needs at least two workers: a worker takes the state from another one");
  if (const std::string why = not_for_rejoin(make_options(recipe)); !why.empty())
    throw UsageError("--restart is not for " + why);
  if (chooses_topology(recipe) && recipe.checkpoint.resume.empty())
    throw UsageError("--restart is not for mixing.topology = auto: choose a topology by name");
  if (recipe.run.ends == "together") throw UsageError("--restart is not for run.ends = together: each");
}

namespace {

// The topology of the recipe, of the checkpoint, or a newly chosen one; only the last has a reason.
ChosenTopology topology_of(const Recipe& recipe, const World& world, const Observer& observer,
                           Learner& learner, const std::optional<Manifest>& resumed) {
  if (!chooses_topology(recipe)) return {recipe.mixing.topology, ""};
  if (resumed && resumed->workers == world.size)
    return {topology_in(resumed->recipe, recipe.checkpoint.resume), ""};
  World interruptible = world;
  if (observer.interrupted) interruptible.interrupted = observer.interrupted;
  return choose_topology(recipe, interruptible, learner);
}

// The beginning of a run.
struct Start {
  std::optional<Checkpoint> from{};  // nothing for a worker that comes into a run
  std::optional<Manifest> resumed{};
  std::vector<EarlierWorkers> before{};
  // Steps done: by each rank of the run that is resumed and of those before it, and by each worker
  // of this run.
  std::vector<std::int64_t> by_earlier{}, made{};
};

// A worker that comes into a run reads its beginning in the run's folder: the latest checkpoint is
// now one of the run's own, and the one that it resumed may be gone.
Start find_start(const Recipe& recipe, int workers, bool is_newcomer) {
  Start start;
  if (!is_newcomer) {
    start.from = find_checkpoint(recipe, workers);
    if (start.from) start.resumed = start.from->manifest();
  } else if (!recipe.checkpoint.resume.empty()) {
    start.resumed = Metrics::resumed(recipe.run.out);
  }
  start.made.resize(static_cast<std::size_t>(workers));
  start.by_earlier = start.made;
  if (!start.resumed) return start;
  const Manifest& manifest = *start.resumed;
  const std::vector<EarlierWorkers> all = before_others(manifest);
  const bool same = other_workers(recipe) == OtherWorkers::refuse || fits_workers(manifest, workers);
  start.before = same ? manifest.before : all;
  for (const EarlierWorkers& earlier : all) {
    start.by_earlier.resize(std::max(start.by_earlier.size(), earlier.steps.size()));
    std::ranges::copy(earlier.steps, start.by_earlier.begin());
    // The workers behind them begin with this step, also where one had done more.
    if (!same || &earlier != &all.back())
      for (std::int64_t& step : start.by_earlier) step = std::min(step, earlier.step);
  }
  start.made = all.back().steps;
  if (!same) start.made.assign(static_cast<std::size_t>(workers), manifest.step);
  return start;
}

Drawer drawer_of(const World& world, const std::vector<EarlierWorkers>& before, std::int64_t accumulate) {
  Drawer who{world.rank, world.size};
  std::int64_t began = 0;
  for (const EarlierWorkers& earlier : before) {
    Drawn& drawn = who.before.emplace_back();
    for (const std::int64_t step : earlier.steps) drawn.batches.push_back((step - began) * accumulate);
    drawn.end = earlier.step * accumulate;
    began = earlier.step;
  }
  return who;
}

// Samples that the earlier workers have drawn, per worker of now.
std::int64_t samples_before(const Drawer& who, std::int64_t batch) {
  std::int64_t batches = 0;
  for (const Drawn& drawn : who.before)
    batches = std::accumulate(drawn.batches.begin(), drawn.batches.end(), batches);
  return batches * batch / who.workers;
}

Result run(Recipe recipe, const World& world, const Observer& observer) {
  const bool is_newcomer = goes_on(world);
  if (world.rejoin && world.size > 1) check_restarts(recipe, world.size);
  if (is_newcomer) {  // the run that it comes into has begun
    check_settings(recipe, world.size, world.local_size);
    check_machine(recipe);
  } else {
    check_recipe(recipe, world.size, world.local_size);
  }
  const Start begun = find_start(recipe, world.size, is_newcomer);
  const std::optional<Manifest>& resumed = begun.resumed;
  const std::vector<std::int64_t>& made = begun.made;
  const TaskInfo& task = task_of(recipe);
  const Drawer who = drawer_of(world, begun.before, recipe.train.accumulate);
  const MakeTask make_task = named_input([&] { return task.load(recipe); });
  Learner learner(recipe, make_task, who, device_of(recipe, world.local_rank));
  const std::int64_t steps = learner.steps();
  // All take rank 0's weights.
  if (world.rank == 0 && begins_with_model(recipe)) first_model(recipe).load_into(learner.model());

  if (begun.from && resumed->step >= steps) {
    throw UsageError(fmt::format("{} is of step {}: the run was done, there is nothing to resume",
                                 begun.from->folder(), resumed->step));
  }
  // After all that can refuse the run; and no worker writes before all have an Optimizer. A run
  // that goes on from another folder's checkpoint has no lines here yet.
  Metrics metrics(recipe.run.out, world.log);
  if (world.local_rank == 0 && !is_newcomer) {
    const bool goes_on_here = begun.from && is_of(*begun.from, checkpoints_of(recipe));
    metrics.clear_after(goes_on_here ? begun.by_earlier : std::vector<std::int64_t>{});
  }

  const ChosenTopology topology = topology_of(recipe, world, observer, learner, resumed);
  const std::string as_given = print_recipe(recipe);
  recipe.mixing.topology = topology.name;
  const auto made_optimizer = make_optimizer(recipe, learner.model(), world);
  Optimizer& optimizer = *made_optimizer;
  std::optional<Ema> ema;
  if (recipe.train.ema > 0) {
    ema.emplace(learner.model(), recipe.train.ema, recipe.mixing.jump_guard, world.log);
    optimizer.add_to_state(ema->tensors());
  }
  // By each: whichever of them ends, a worker that comes later finds it.
  if (resumed && !is_newcomer) metrics.write_resumed(*resumed);
  if (begun.from) load_checkpoint(optimizer, *begun.from, other_workers(recipe));
  const auto own_steps = [&, before = made[static_cast<std::size_t>(world.rank)]] {
    return before + static_cast<std::int64_t>(optimizer.steps());
  };
  const std::int64_t first_step = own_steps();
  Logbook log(
      recipe, world, observer, metrics,
      {.steps = steps,
       .steps_per_epoch = learner.steps_per_epoch(),
       .first_step = first_step,
       .first_seconds = std::max(resumed ? resumed->seconds : 0, is_newcomer ? metrics.latest_seconds() : 0),
       .begin = learner.first_step(),
       .begin_epochs = learner.task().deal().epochs_before(),
       .begin_samples = samples_before(who, recipe.train.batch)});
  if (world.rank == 0 && !is_newcomer) {
    if (!topology.why.empty()) log.add_choice(topology);  // the first line
    metrics.write_recipe(as_given);
  }
  if (!topology.why.empty()) {  // no other line comes before it
    std::int64_t nothing = 0;
    optimizer.maximum({&nothing, 1});
  }
  Timeline* const timeline = world.timeline.get();

  // The steps of the run: this worker's own, or the mean of all workers' as far as this one knows.
  const auto done_after = [&, before = std::accumulate(made.begin(), made.end(), std::int64_t{0})](
                              std::int64_t own, const Statistics& now) {
    if (recipe.run.ends == "each") return own;
    return std::min((before + static_cast<std::int64_t>(now.gradients_of_all)) / world.size, steps);
  };
  CheckpointWriter checkpoints(optimizer, checkpoints_of(recipe), recipe.checkpoint.keep);
  // Saves and tests are collective: each worker takes part when it reaches that step.
  const auto reached = [&](std::int64_t done, std::int64_t own) {
    const std::int64_t every = recipe.checkpoint.every;
    if (every > 0 && (done % every == 0 || done == steps)) {
      checkpoints.save(
          {.step = done, .seconds = log.seconds(), .before = begun.before, .recipe = recipe_values(recipe)},
          own);
    }
    if (recipe.log.eval_every > 0 && done % recipe.log.eval_every == 0 && done < steps) {
      const Operation operation(optimizer);
      const AverageScore test = test_average(optimizer, learner.task(), ema ? &*ema : nullptr);
      if (speaks(optimizer)) {
        log.add_test(test);
        if (observer.says) {
          observer.says(fmt::format("step {}: average model: test {} {}, loss {:.4f}", done, task.score.name,
                                    task.score.text(test.score.value), test.score.loss));
        }
      }
    }
  };

  std::int64_t done = done_after(first_step, optimizer.statistics());
  for (std::int64_t step = first_step; done < steps; step = own_steps()) {
    if (observer.interrupted && observer.interrupted()) throw RunInterrupted();
    const Time begin = Clock::now();
    set_failpoint_step(step + 1);
    if (timeline != nullptr) timeline->step(step + 1);
    const double lr = learner.begin_step(done, optimizer);
    const double loss = learner.gradient(step, optimizer);
    optimizer.step();
    if (ema && !optimizer.joined() && optimizer.counts()) ema->update();
    const Statistics now = optimizer.statistics();
    const std::int64_t own = own_steps(), before = std::exchange(done, done_after(own, now));
    if (optimizer.joined()) continue;
    log.add({.number = own, .loss = loss, .lr = lr, .seconds = seconds(Clock::now() - begin)}, now, done);
    // A worker that was behind the others has left steps out, and what follows them.
    const std::int64_t first = own == step + 1 ? before + 1 : done;
    for (std::int64_t passed = first; passed <= done; ++passed) reached(passed, own);
  }

  const Operation operation(optimizer);
  const Result result{
      .summary = summarize(recipe, world, optimizer, learner.task(), ema ? &*ema : nullptr, log, steps),
      .speaks = speaks(optimizer)};
  if (result.speaks) {
    const Summary& end = result.summary;
    log.add_test({{end.score, end.test_loss}, end.consensus_distance});
    metrics.write(end);
  }
  if (recipe.checkpoint.every > 0) checkpoints.finish();
  if (!recipe.log.profile.empty()) {
    write_at_end(world, [&] { write_compute(world, optimizer.block_sizes(), result, recipe.log.profile); });
  }
  return result;
}

}  // namespace

Result train(const Recipe& recipe, const World& world, const Observer& observer) {
  if (!recipe.log.timeline && recipe.log.profile.empty()) return run(recipe, world, observer);
  World recorded = world;
  recorded.timeline = make_timeline(recipe, world);
  try {
    const Result result = run(recipe, recorded, observer);
    if (recipe.log.timeline) write_timeline(recipe, recorded);
    return result;
  } catch (const RunInterrupted&) {
    if (recipe.log.timeline) write_timeline(recipe, recorded);
    throw;
  }
}

}  // namespace starling
