#include "starling/train/auto_topology.h"

#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include "starling/core/error.h"
#include "starling/optim/gathering.h"
#include "starling/optim/options.h"
#include "starling/optim/schemes/table.h"
#include "starling/plan/choose.h"
#include "starling/plan/schedules.h"
#include "starling/probe/probe.h"
#include "starling/train/compute.h"
#include "starling/train/planned_scheme.h"

namespace starling {

namespace {

constexpr double kProbeSeconds = 5;
constexpr double kSameModel = 0.01;  // largest relative difference of its bytes
constexpr Horizon kPlanned{.iterations = 80, .warm_up = 20};

// This worker's compute times.
RecordedCompute measured_compute(const Recipe& recipe, const World& world, Learner& learner) {
  World recorded = world;
  recorded.timeline = std::make_shared<Timeline>(world.rank, world.size, TimelineOptions{.from = 1});
  std::vector<at::Tensor> buffers;  // saved, since forward() changes them
  for (const at::Tensor& buffer : learner.model().buffers()) buffers.push_back(buffer.clone());
  Recipe measured = recipe;
  measured.mixing.topology = schedules_for(make_options(recipe), world.size, world.local_size).front();
  const auto made = make_optimizer(measured, learner.model(), recorded);
  Optimizer& optimizer = *made;
  for (auto& group : optimizer.param_groups()) group.options().set_lr(0);
  const std::int64_t first = learner.first_step();  // earlier workers have drawn what is before it
  for (std::int64_t step = 0; step < kMeasuredSteps; ++step) {
    recorded.timeline->step(step + 1);
    optimizer.zero_grad();
    learner.gradient(first + step, optimizer);
    optimizer.step();
  }
  optimizer.zero_grad();
  const c10::AutoGradMode no_gradient(false);
  for (std::size_t b = 0; b < buffers.size(); ++b) learner.model().buffers()[b].copy_(buffers[b]);
  return recorded_compute(recorded.timeline->spans(), optimizer.block_sizes());
}

// The measurements of all workers, in rank 0's order of blocks, since only rank 0 reads them.
Profile gathered_compute(Gathering& gathering, const RecordedCompute& mine) {
  Profile all = mine.profile;
  all.compute.clear();
  for (const std::string& said : gathering.texts(print_profile(mine.profile))) {
    const std::string worker = fmt::format("worker {}", all.compute.size());
    const Profile theirs = parse_profile(said, worker);
    if (theirs.compute.size() != 1 || theirs.blocks.size() != all.blocks.size())
      throw Error(
          fmt::format("{}: its profile is not that of one worker with {} blocks", worker, all.blocks.size()));
    all.compute.push_back(theirs.compute.front());
  }
  return in_order(all, mine.order);
}

// `like` has the model's parameters.
ChosenTopology chosen(const Recipe& recipe, const World& world, const Profile& profile, const Block& like,
                      const std::string& source) {
  Options options = make_options(recipe);
  const Network network = network_of(profile);
  std::vector<Candidate> all;
  for (const std::string& topology :
       schedules_for(options, world.size, world.local_size, hosts_are_alike(network.host_of))) {
    options.topology = topology;
    const Schedule schedule = schedule_of(options, world.size, world.local_size);
    all.push_back({topology, options.wire, simulate(network, profile, options, schedule, like, kPlanned)});
  }
  const Candidate& best = recommended(all);
  std::string others;
  for (const Candidate& other : all) {
    if (&other != &best)
      others +=
          fmt::format("{} {} {:.2f}", others.empty() ? ";" : ",", other.schedule, other.outcome.step * 1e3);
  }
  return {best.schedule, fmt::format("topology auto: {}, by {}: a step of {:.2f} ms{}{}", best.schedule,
                                     source, best.outcome.step * 1e3, others, others.empty() ? "" : " ms")};
}

Block trained_by(Learner& learner) {
  std::vector<at::Tensor> parameters = learner.model().parameters();
  std::erase_if(parameters, [](const at::Tensor& p) { return !p.requires_grad(); });
  return as_one_block(parameters);
}

// The size of the trained parameters in fp32.
double model_bytes(const Recipe& recipe) {
  const auto model = task_of(recipe).model(recipe);
  double bytes = 0;
  for (const at::Tensor& p : model->parameters()) {
    if (p.requires_grad()) bytes += sizeof(float) * static_cast<double>(p.numel());
  }
  return bytes;
}

}  // namespace

std::vector<std::string> schedules_for(Options options, int workers, int local_workers, bool alike) {
  std::vector<std::string> accepted;
  std::string refusal;
  for (const std::string& name :
       planned_schedules(workers, workers_per_node(options, local_workers), alike)) {
    options.topology = name;
    try {
      check_options(options, workers, local_workers, false);
      if (is_planned(name, options.wire)) accepted.push_back(name);
    } catch (const UsageError& error) {
      if (refusal.empty()) refusal = error.what();
    }
  }
  if (accepted.empty()) throw UsageError(refusal);
  return accepted;
}

void check_auto_topology(const Recipe& recipe, int workers) {
  const auto& mixing = recipe.mixing;
  if (!chooses_topology(recipe)) {
    if (!mixing.profile.empty())
      throw UsageError(fmt::format("mixing.profile = {}: it is for mixing.topology = auto, not {}",
                                   mixing.profile, mixing.topology));
    return;
  }
  const auto knows = [](const SchemeInfo& info) {
    return info.uses_topology() && planned_as(std::string(info.name));
  };
  if (!knows(scheme_info(mixing.scheme))) {
    std::vector<std::string_view> known;
    for (const SchemeInfo* const info : schemes()) {
      if (knows(*info)) known.push_back(info->name);
    }
    throw UsageError(
        fmt::format("mixing.topology = auto: the planner knows mixing.scheme {}, not {}: name a topology",
                    fmt::join(known, ", "), mixing.scheme));
  }
  if (mixing.hierarchy != "none")
    throw UsageError(fmt::format(
        "mixing.topology = auto: the planner does not know mixing.hierarchy = {}: name a topology",
        mixing.hierarchy));
  if (mixing.profile.empty()) return;
  const Profile profile = read_profile(mixing.profile);
  if (!profile.has_network())
    throw UsageError(
        fmt::format("{}: it holds no network (hosts): `starling probe` measures one", mixing.profile));
  if (profile.workers() != workers)
    throw UsageError(fmt::format("{}: it is of {} worker{}, and there {} {}: probe these", mixing.profile,
                                 profile.workers(), profile.workers() == 1 ? "" : "s",
                                 workers == 1 ? "is" : "are", workers));
  if (!profile.has_compute()) return;
  const double recorded = std::accumulate(profile.blocks.begin(), profile.blocks.end(), 0.0);
  const double mine = model_bytes(recipe);
  if (std::abs(recorded - mine) > kSameModel * mine)
    throw UsageError(
        fmt::format("{}: its compute is of a model of {:.0f} bytes, and this one has {:.0f}: "
                    "record it anew, or leave compute out",
                    mixing.profile, recorded, mine));
}

ChosenTopology choose_topology(const Recipe& recipe, const World& world, Learner& learner) {
  if (world.size == 1) {
    const std::string name = schedules_for(make_options(recipe), 1, 1).front();
    return {name, fmt::format("topology auto: {}: one worker alone has nothing to choose", name)};
  }
  std::optional<Profile> profile;
  if (!recipe.mixing.profile.empty()) profile = read_profile(recipe.mixing.profile);
  const bool has_compute = profile && profile->has_compute();
  if (!profile) profile = probe(world, {.seconds = kProbeSeconds, .all_reduce = false}).network;
  Gathering gathering(world, "auto-topology");
  if (!has_compute)
    profile = joined(*profile, gathered_compute(gathering, measured_compute(recipe, world, learner)));
  const std::string& file = recipe.mixing.profile;
  ChosenTopology mine;
  if (world.rank == 0)
    mine = chosen(recipe, world, *profile, trained_by(learner),
                  file.empty()  ? "what was measured now"
                  : has_compute ? file
                                : file + " and the compute measured now");
  mine.name = gathering.texts(mine.name).front();
  mine.why = gathering.texts(mine.why).front();
  return mine;
}

}  // namespace starling
