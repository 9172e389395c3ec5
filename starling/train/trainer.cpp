#include "starling/train/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "starling/checkpoint/file.h"
#include "starling/core/clock.h"
#include "starling/core/error.h"
#include "starling/kernels/update.h"
#include "starling/optim/checkpoint.h"
#include "starling/optim/options.h"
#include "starling/plan/schedules.h"
#include "starling/train/auto_topology.h"
#include "starling/train/compute.h"
#include "starling/train/evaluate.h"
#include "starling/train/learner.h"
#include "starling/train/tensorboard.h"

namespace starling {

namespace {

std::string checkpoints_of(const Recipe& recipe) { return recipe.run.out + "/checkpoints"; }

// The checkpoint to go on from, if the recipe names one; it fits the recipe and the number of workers.
std::optional<Checkpoint> find_checkpoint(const Recipe& recipe, int workers) {
  const std::string root = checkpoints_of(recipe);
  std::optional<Checkpoint> start;
  if (!recipe.checkpoint.resume.empty()) {
    start.emplace(recipe.checkpoint.resume);
    check_resumable(recipe, start->manifest().recipe, start->folder());
    check_workers(*start, workers);
  }
  if (recipe.checkpoint.every == 0 || !has_checkpoints(root)) return start;
  if (!start || !std::filesystem::equivalent(std::filesystem::path(start->folder()) / "..", root)) {
    throw UsageError(
        fmt::format("{} holds the checkpoints of another run: resume it (--resume {}), remove them, or "
                    "give another folder (--out)",
                    root, root));
  }
  return start;
}

// Whether this worker has the lowest rank of those that are there. Collective: a worker that went by itself is not one of
// Statistics::lost.
bool speaks(Optimizer& optimizer) {
  const std::int64_t mine = -optimizer.world().rank;
  std::int64_t lowest = mine;
  optimizer.maximum({&lowest, 1});
  return lowest == mine;
}

// Counts the run of one worker, tells the observer after each step and writes metrics.jsonl and event files.
class Logbook {
 public:
  Logbook(const Recipe& recipe, const World& world, const Observer& observer, Metrics& metrics,
          std::int64_t steps, double steps_per_epoch, std::int64_t first_step, double first_seconds)
      : observer_(observer),
        metrics_(metrics),
        asynchronous_(is_asynchronous(make_options(recipe))),
        every_(recipe.log.every),
        score_(task_of(recipe).score),
        batch_(recipe.train.batch * recipe.train.accumulate),
        rank_(world.rank),
        workers_(world.size),
        steps_(steps),
        steps_per_epoch_(steps_per_epoch),
        step_(first_step),
        seconds_(first_seconds),
        seconds_before_(first_seconds),
        seconds_at_line_(first_seconds) {
    if (recipe.log.tensorboard)
      events_.emplace(fmt::format("{}/tensorboard/worker-{}", recipe.run.out, rank_));
  }

  // `done` steps of the run, this worker's own or the mean of all workers'; the last one's line is always written.
  void add(double loss, double lr, double seconds, const Statistics& now, std::int64_t done, bool last) {
    ++step_;
    seconds_ += seconds;
    losses_ += loss;
    ++losses_counted_;
    if (observer_.progress) {
      const auto share = static_cast<double>(std::max<std::int64_t>(done, 1));
      observer_.progress({.step = done,
                          .steps = steps_,
                          .epoch = static_cast<double>(done) / steps_per_epoch_,
                          .epochs = static_cast<double>(steps_) / steps_per_epoch_,
                          .loss = losses_ / losses_counted_,
                          .samples_per_second = static_cast<double>(samples() * workers_) / seconds_,
                          .seconds_left = seconds_ / share * static_cast<double>(steps_ - done),
                          .waiting_share = waiting_share(now)});
    }
    if (step_ % every_ == 0 || last) write_line(lr, now);
  }

  void add_choice(const ChosenTopology& chosen) {
    metrics_.write_chosen(chosen.name, chosen.why);
    if (observer_.says) observer_.says(chosen.why);
    if (events_) events_->write_text(step_, "mixing/topology", chosen.why);
  }

  // A test of the average model; for the event files, by the worker that speaks.
  void add_test(const AverageScore& test) {
    if (!events_) return;
    const std::string tag = fmt::format("test/{}", score_.name);
    events_->write(step_, {{tag, test.score.value},
                           {"test/loss", test.score.loss},
                           {"test/consensus_distance", test.consensus_distance}});
  }

  std::int64_t samples() const { return step_ * batch_; }  // of this worker
  double seconds() const { return seconds_; }
  double loss() const { return loss_; }  // of the latest line
  double waiting_share(const Statistics& now) const {
    return now.seconds_waiting / (seconds_ - seconds_before_);
  }

 private:
  void write_line(double lr, const Statistics& now) {
    loss_ = losses_ / losses_counted_;
    const double seconds = seconds_ - seconds_at_line_;
    const double waiting_share = (now.seconds_waiting - waited_) / seconds;
    std::optional<StepRecord::Gossip> gossip;
    if (asynchronous_)
      gossip = {.rate = now.rate, .distance = now.distance, .edges = now.edges, .questions = now.questions};
    metrics_.write({.rank = rank_,
                    .step = step_,
                    .epoch = static_cast<double>(step_) / steps_per_epoch_,
                    .samples = samples(),
                    .seconds = seconds_,
                    .loss = loss_,
                    .lr = lr,
                    .waiting_share = waiting_share,
                    .bytes_sent = now.bytes_sent,
                    .gossip = gossip});
    if (events_ && asynchronous_)
      events_->write(step_, {{"gossip/rate", now.rate}, {"gossip/distance", now.distance}});
    if (events_) {
      events_->write(step_,
                     {{"train/loss", loss_},
                      {"train/lr", lr},
                      {"train/samples_per_second", static_cast<double>(losses_counted_ * batch_) / seconds},
                      {"exchange/waiting_share", waiting_share},
                      {"exchange/bytes_sent", static_cast<double>(now.bytes_sent)}});
    }
    losses_ = 0;
    losses_counted_ = 0;
    waited_ = now.seconds_waiting;
    seconds_at_line_ = seconds_;
  }

  const Observer& observer_;
  Metrics& metrics_;
  std::optional<EventFile> events_;
  const bool asynchronous_;
  const std::int64_t every_;
  const ScoreInfo& score_;
  const std::int64_t batch_;
  const int rank_;
  const int workers_;
  const std::int64_t steps_;
  const double steps_per_epoch_;
  std::int64_t step_;
  double seconds_;
  const double seconds_before_;  // of the run that this one goes on with
  double losses_ = 0;            // since the latest line
  int losses_counted_ = 0;
  double loss_ = 0;
  double waited_ = 0;  // at the latest line
  double seconds_at_line_;
};

// Tests the result and puts together what all workers that are left have to say.
Summary summarize(const Recipe& recipe, const World& world, Optimizer& optimizer, Task& task,
                  const Logbook& log, std::int64_t steps) {
  const ScoreInfo& info = task_of(recipe).score;
  const Statistics statistics = optimizer.statistics();  // before the tests, which send too
  const AverageScore test = test_average(optimizer, task);
  const double worst = test_worst(optimizer, task, info);
  constexpr double kMega = 1e6;  // so that float holds them well
  std::array<float, 9> means{static_cast<float>(log.loss()),
                             static_cast<float>(log.seconds()),
                             static_cast<float>(log.waiting_share(statistics)),
                             static_cast<float>(static_cast<double>(statistics.bytes_sent) / kMega),
                             static_cast<float>(log.samples()),
                             static_cast<float>(statistics.aborted),
                             static_cast<float>(statistics.directed_aborted),
                             static_cast<float>(statistics.skipped),
                             static_cast<float>(statistics.questions.unanswered)};
  const int left = optimizer.average(means);
  const bool all_reduce = recipe.mixing.scheme == "all-reduce";
  return {.scheme = recipe.mixing.scheme,
          .schedule =
              all_reduce || recipe.mixing.scheme == "ceca-2p" ? recipe.mixing.scheme : recipe.mixing.topology,
          .rule = recipe.optimizer.rule,
          .wire = recipe.mixing.wire,
          .one_in = recipe.mixing.one_in,
          .workers = world.size,
          .workers_lost = world.size - left,
          .steps = steps,
          .samples = std::llround(double{means[4]} * left),
          .seconds = means[1],
          .loss = means[0],
          .test_loss = test.score.loss,
          .score_name = std::string(info.name),
          .score = test.score.value,
          .worst_score = worst,
          .consensus_distance = test.consensus_distance,
          .bytes_sent_per_worker = static_cast<std::uint64_t>(std::llround(double{means[3]} * kMega)),
          .bytes_computed = all_reduce,
          .waiting_share = means[2],
          .blocks_aborted = means[5],
          .directed_aborted = means[6],
          .questions_unanswered = means[8],
          .steps_skipped = means[7],
          .seed = recipe.run.seed};
}

constexpr std::size_t kProfileSpans = std::size_t{1} << 17;  // where a profile is all that is wanted

std::shared_ptr<Timeline> make_timeline(const Recipe& recipe, const World& world) {
  TimelineOptions options{.from = recipe.log.timeline_from};
  if (!recipe.log.timeline) options = {.from = 1, .most = kProfileSpans};
  if (recipe.log.timeline_to > 0) options.to = recipe.log.timeline_to;
  return std::make_shared<Timeline>(world.rank, world.size, options);
}

void write_timeline(const Recipe& recipe, const World& world) {
  world.timeline->write(fmt::format("{}/timeline-{}.json", recipe.run.out, world.rank));
  if (const std::size_t dropped = world.timeline->dropped()) {
    world.log(Level::warning, fmt::format("the timeline was full: its last {} spans are missing; "
                                          "log.timeline_from and log.timeline_to choose steps",
                                          dropped));
  }
}

// The workers tell each other through the store what they have recorded, and the one that speaks writes it. The run is done: what
// fails here is said, no more.
void write_compute(const World& world, const std::vector<std::int64_t>& sizes, const Result& result,
                   const std::string& path) {
  const auto key = [](int rank) { return fmt::format("compute/{}", rank); };
  const RecordedCompute mine = recorded_compute(world.timeline->spans(), sizes);
  world.store->set(key(world.rank), print_profile(mine.profile));
  if (!result.speaks) return;
  if (result.summary.workers_lost > 0) {
    return world.log(Level::warning, fmt::format("{}: not written: {} of {} workers were lost on the way",
                                                 path, result.summary.workers_lost, world.size));
  }
  Profile all = mine.profile;
  all.compute.clear();
  for (int rank = 0; rank < world.size; ++rank) {
    const std::string said = world.store->get(key(rank), world.timeouts.meet, world.interrupted);
    all.compute.push_back(parse_profile(said, fmt::format("worker {}", rank)).compute.front());
  }
  write_text(path, print_profile(in_order(all, mine.order)));
}

}  // namespace

void limit_threads(const Recipe& recipe, const World& world) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  at::set_num_threads(recipe.run.threads > 0 ? recipe.run.threads : std::max(1, cores / world.local_size));
  at::set_num_interop_threads(1);
}

void check_recipe(const Recipe& recipe, int workers, int local_workers) {
  kernels::best_kernels();  // throws where STARLING_ISA is wrong
  task_of(recipe).find_data(recipe);
  check_auto_topology(recipe, workers);
  Options options = make_options(recipe);
  if (chooses_topology(recipe)) options.topology = planned_schedules().front();
  check_options(options, workers, local_workers, false);
  if (recipe.run.ends == "together" && !is_asynchronous(options)) {
    throw UsageError(fmt::format("run.ends = together: with scheme {} all workers make as many steps: each",
                                 recipe.mixing.scheme));
  }
  const std::string reason = needs_float32(options, false);
  if (recipe.model.dtype != "fp32" && !reason.empty())
    throw UsageError(fmt::format("model.dtype = {}: {}", recipe.model.dtype, reason));
  if (!recipe.log.profile.empty() && recipe.mixing.hierarchy != "none")
    throw UsageError(
        "log.profile: with mixing.hierarchy each worker updates its own blocks only: record without");
  find_checkpoint(recipe, workers);
}

namespace {

// The recipe's, the one that the checkpoint was trained with, or a new one; only this has a reason.
ChosenTopology topology_of(const Recipe& recipe, const World& world, const Observer& observer,
                           Learner& learner, const std::optional<Checkpoint>& start) {
  if (!chooses_topology(recipe)) return {recipe.mixing.topology, ""};
  if (start) return {topology_in(start->manifest().recipe, start->folder()), ""};
  World interruptible = world;
  if (observer.interrupted) interruptible.interrupted = observer.interrupted;
  return choose_topology(recipe, interruptible, learner);
}

// The steps that each worker has made before this run goes on.
std::vector<std::int64_t> steps_made(const std::optional<Checkpoint>& start, int workers) {
  std::vector<std::int64_t> made(static_cast<std::size_t>(workers));
  if (start) {
    for (const WorkerFile& file : start->manifest().files)
      made[static_cast<std::size_t>(file.worker)] = file.step;
  }
  return made;
}

Result run(Recipe recipe, const World& world, const Observer& observer) {
  Metrics metrics(recipe.run.out);
  const std::optional<Checkpoint> start = find_checkpoint(recipe, world.size);
  const std::vector<std::int64_t> made = steps_made(start, world.size);
  if (world.local_rank == 0) metrics.clear_after(made);  // nobody writes before all have made their Optimizer
  const TaskInfo& task = task_of(recipe);
  Learner learner(recipe, task.load(recipe), world.rank, world.size);
  const std::int64_t steps = learner.steps();

  if (start && start->manifest().step >= steps) {
    throw UsageError(fmt::format("{} is of step {}: the run was done, there is nothing to resume",
                                 start->folder(), start->manifest().step));
  }

  const ChosenTopology topology = topology_of(recipe, world, observer, learner, start);
  recipe.mixing.topology = topology.name;
  Optimizer optimizer(learner.model(), make_rule(recipe), make_options(recipe), world);
  if (start) load_checkpoint(optimizer, *start);
  const std::int64_t first_step = made[static_cast<std::size_t>(world.rank)];
  Logbook log(recipe, world, observer, metrics, steps, learner.steps_per_epoch(), first_step,
              start ? start->manifest().seconds : 0);
  if (!topology.why.empty() && world.rank == 0) log.add_choice(topology);
  Timeline* const timeline = world.timeline.get();

  // The steps of the run: this worker's own, or the mean of all workers', as far as it has heard.
  const auto done_after = [&, before = std::accumulate(made.begin(), made.end(), std::int64_t{0})](
                              std::int64_t own, const Statistics& now) {
    if (recipe.run.ends == "each") return own;
    return std::min((before + static_cast<std::int64_t>(now.gradients_of_all)) / world.size, steps);
  };
  // What all workers do together, each when it comes there.
  const auto reached = [&](std::int64_t done, std::int64_t own) {
    const std::int64_t every = recipe.checkpoint.every;
    if (every > 0 && (done % every == 0 || done == steps)) {
      save_checkpoint(optimizer, checkpoints_of(recipe),
                      {.step = done, .seconds = log.seconds(), .recipe = recipe_values(recipe)},
                      recipe.checkpoint.keep, own);
    }
    if (recipe.log.eval_every > 0 && done % recipe.log.eval_every == 0 && done < steps) {
      const AverageScore test = test_average(optimizer, learner.task());
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
  for (std::int64_t step = first_step; done < steps; ++step) {
    if (observer.interrupted && observer.interrupted()) throw RunInterrupted();
    const Time begin = Clock::now();
    if (timeline != nullptr) timeline->step(step + 1);
    const double lr = learner.begin_step(done, optimizer);
    const double loss = learner.gradient(step, optimizer);
    optimizer.step();
    const Statistics now = optimizer.statistics();
    const std::int64_t before = std::exchange(done, done_after(step + 1, now));
    log.add(loss, lr, seconds(Clock::now() - begin), now, done, done == steps);
    for (std::int64_t passed = before + 1; passed <= done; ++passed) reached(passed, step + 1);
  }

  const Result result{.summary = summarize(recipe, world, optimizer, learner.task(), log, steps),
                      .speaks = speaks(optimizer)};
  if (result.speaks) {
    const Summary& end = result.summary;
    log.add_test({{end.score, end.test_loss}, end.consensus_distance});
    metrics.write(end);
  }
  if (!recipe.log.profile.empty()) write_compute(world, optimizer.block_sizes(), result, recipe.log.profile);
  return result;
}

}  // namespace

Result train(const Recipe& recipe, const World& world, const Observer& observer) {
  check_recipe(recipe, world.size, world.local_size);
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
