#include "starling/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include "starling/core/error.h"
#include "starling/kernels/mask.h"
#include "starling/kernels/update.h"
#include "starling/optim/agreement.h"
#include "starling/optim/engine.h"
#include "starling/optim/rule_step.h"
#include "starling/optim/schemes/all_reduce.h"
#include "starling/optim/schemes/around.h"
#include "starling/optim/schemes/asynchronous.h"
#include "starling/optim/schemes/atc.h"
#include "starling/optim/schemes/choco.h"
#include "starling/optim/schemes/cta.h"
#include "starling/optim/schemes/hierarchical.h"
#include "starling/topology/schedules.h"

namespace starling {
namespace {

using Groups = std::vector<torch::optim::OptimizerParamGroup>;

// Each once, in the module's order: a parameter may be shared by several layers.
std::vector<at::Tensor> trainable(const torch::nn::Module& module) {
  std::vector<at::Tensor> parameters;
  std::set<const void*> seen;
  for (const at::Tensor& p : module.parameters()) {
    if (p.requires_grad() && seen.insert(p.unsafeGetTensorImpl()).second) parameters.push_back(p);
  }
  return parameters;
}

// Every tensor of the module by its name, once: the first name of those that are shared.
std::vector<std::pair<std::string, at::Tensor>> tensors_of(const torch::nn::Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::set<const void*> seen;
  for (const auto& all : {module.named_parameters(), module.named_buffers()}) {
    for (const auto& item : all) {
      if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second) {
        tensors.emplace_back(item.key(), item.value());
      }
    }
  }
  return tensors;
}

// As torch does, but saying which one.
const Groups& checked(const Groups& groups) {
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t p = 0; p < groups[g].params().size(); ++p) check_parameter(groups[g].params()[p], g, p);
  }
  return groups;
}

// Newer torch (2.15) merges a group's options with the optimizer's, and drops those whose type is none of its own.
void keep_options(torch::optim::OptimizerParamGroup& kept, const torch::optim::OptimizerParamGroup& given) {
  if (given.has_options()) kept.set_options(given.options().clone());
}

int workers_per_node(const Options& options, const World& world) {
  return options.workers_per_node == 0 ? world.local_size : options.workers_per_node;
}

bool asynchronous(const Options& options) {
  return options.scheme == "a2cid2" || options.scheme == "ad-psgd";
}

// Where there are no neighbours, the exchange's edges serve the exact averages only.
Schedule without_neighbours(const World& world) { return {"none", {Graph(world.size)}}; }

Schedule schedule_of(const Options& options, const World& world) {
  if (options.scheme == "all-reduce") return without_neighbours(world);
  const int per_node = workers_per_node(options, world);
  if (options.hierarchy == "none") return make_schedule(options.topology, world.size, per_node);
  return make_schedule(options.topology, world.size / per_node).for_each_place(per_node);
}

void check_choco(const Options& options, bool inner) {
  if (!(options.gamma >= 0 && options.gamma <= 1))
    throw UsageError(
        fmt::format("gamma = {} is not allowed: from 0, which stands for the default, to 1", options.gamma));
  if (options.scheme != "choco") {
    if (options.gamma != 0)
      throw UsageError(fmt::format("gamma = {} is for scheme \"choco\", not \"{}\": use 0", options.gamma,
                                   options.scheme));
    return;
  }
  const auto refuse = [](const std::string& why) { throw UsageError("scheme \"choco\" " + why); };
  if (inner) refuse("needs one of Starling's rules, not another optimizer");
  if (options.wire != Wire::fp32)
    refuse(fmt::format("needs wire \"fp32\", not \"{}\"", name_of(options.wire)));
}

// Each edge has a memory from one round to the next.
void check_memory(const Options& options, const Schedule& schedule) {
  if (schedule.rounds.size() == 1 && schedule.rounds.front().symmetric()) return;
  throw UsageError(
      fmt::format("scheme \"choco\" needs a topology of one round that is symmetric, such as ring, torus or "
                  "complete: \"{}\" {}",
                  options.topology,
                  schedule.rounds.size() == 1 ? "is not symmetric"
                                              : fmt::format("has {} rounds", schedule.rounds.size())));
}

void check_asynchronous(const Options& options) {
  if (!(options.rate > 0 && options.rate <= 1000))
    throw UsageError(fmt::format("rate = {} is not allowed: above 0, to 1000", options.rate));
  if (!asynchronous(options)) {
    if (options.rate != 1)
      throw UsageError(fmt::format("rate = {} is for schemes \"a2cid2\" and \"ad-psgd\", not \"{}\": use 1",
                                   options.rate, options.scheme));
    return;
  }
  if (is_modular(options.wire))
    throw UsageError(fmt::format("scheme \"{}\" needs wire fp32, bf16 or fp16, not \"{}\"", options.scheme,
                                 name_of(options.wire)));
  if (options.one_in != 1)
    throw UsageError(
        fmt::format("one_in = {} is not for scheme \"{}\": use 1", options.one_in, options.scheme));
}

void check_hierarchy(const Options& options, const World& world, bool inner) {
  const std::string& hierarchy = options.hierarchy;
  if (hierarchy == "none") return;
  const auto refuse = [](const std::string& why) { throw UsageError("hierarchy " + why); };
  if (hierarchy != "node") refuse(fmt::format("\"{}\" is unknown: none or node", hierarchy));
  if (options.scheme != "cta")
    refuse(fmt::format("\"node\" needs scheme \"cta\", not \"{}\"", options.scheme));
  if (inner) refuse("\"node\" needs one of Starling's rules: another optimizer's state cannot be divided");
  const int per_node = workers_per_node(options, world);
  if (world.size % per_node != 0) {
    refuse(fmt::format("\"node\": {} workers are no whole number of nodes with {} workers each", world.size,
                       per_node));
  }
}

Terms terms_of(const Options& options, const Schedule& schedule, const std::string& rule, std::size_t blocks,
               const Groups& groups) {
  Terms terms{{"scheme", options.scheme},
              {"topology", options.topology},
              {"wire", std::string(name_of(options.wire))},
              {"one_in", std::to_string(options.one_in)},
              {"gamma", fmt::format("{}", options.gamma)},
              {"rate", fmt::format("{}", options.rate)},
              {"rule", rule},
              {"block_bytes", std::to_string(options.block_bytes)},
              {"hierarchy", options.hierarchy},
              {"workers_per_node", std::to_string(options.workers_per_node)},
              {"clip", fmt::format("{}", options.clip)},
              {"skip_not_finite", fmt::format("{}", options.skip_not_finite)},
              {"rounds of the topology",
               fmt::format("{} with checksum {:016x}", schedule.rounds.size(), schedule.fingerprint())},
              {"number of blocks", std::to_string(blocks)}};
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t p = 0; p < groups[g].params().size(); ++p) {
      const at::Tensor& tensor = groups[g].params()[p];
      terms.emplace_back(fmt::format("parameter {} of group {}", p, g),
                         fmt::format("{} {} with strides {}", c10::toString(tensor.scalar_type()),
                                     fmt::join(tensor.sizes(), "x"), fmt::join(tensor.strides(), ",")));
    }
  }
  return terms;
}

}  // namespace

Optimizer::Optimizer(torch::nn::Module& module, Rule rule, Options options, const World& world)
    : Optimizer(Groups{{trainable(module)}}, rule, options, world, module.buffers()) {
  engine_->model = tensors_of(module);
}

Optimizer::Optimizer(std::vector<at::Tensor> parameters, Rule rule, Options options, const World& world)
    : Optimizer(Groups{{std::move(parameters)}}, rule, options, world) {}

Optimizer::Optimizer(torch::nn::Module& module, torch::optim::Optimizer& inner, Options options,
                     const World& world)
    : Optimizer(inner, options, world, module.buffers()) {
  engine_->model = tensors_of(module);
}

Optimizer::Optimizer(const Groups& groups, Rule rule, Options options, const World& world,
                     std::vector<at::Tensor> buffers)
    : torch::optim::Optimizer(checked(groups), rule_options(rule)), engine_(std::make_unique<Engine>()) {
  for (std::size_t g = 0; g < groups.size(); ++g) keep_options(param_groups_[g], groups[g]);
  engine_->rule = rule;
  begin(std::move(options), world, std::move(buffers));
}

Optimizer::Optimizer(torch::optim::Optimizer& inner, Options options, const World& world,
                     std::vector<at::Tensor> buffers)
    : torch::optim::Optimizer(inner.param_groups(), inner.defaults().clone()),
      engine_(std::make_unique<Engine>()) {
  engine_->inner = &inner;
  begin(std::move(options), world, std::move(buffers));
}

void Optimizer::begin(Options options, const World& world, std::vector<at::Tensor> buffers) {
  Engine& e = *engine_;
  e.world = world;
  e.options = std::move(options);
  e.channel = fmt::format("optimizer-{}", (*world.optimizers)++);
  e.buffers = std::move(buffers);
  const std::string& scheme = e.options.scheme;
  if (scheme != "cta" && scheme != "atc" && scheme != "choco" && scheme != "all-reduce" &&
      !asynchronous(e.options))
    throw UsageError(
        fmt::format("scheme \"{}\" is unknown: cta, atc, choco, a2cid2, ad-psgd or all-reduce", scheme));
  if (scheme == "all-reduce" && e.options.wire != Wire::fp32)
    throw UsageError(
        fmt::format("wire \"{}\" is for parameters, but scheme \"all-reduce\" sends gradients: use fp32",
                    name_of(e.options.wire)));
  if (e.options.one_in < 1 || e.options.one_in > Mask::kMost)
    throw UsageError(
        fmt::format("one_in = {} is not allowed: from 1, all values, to {}", e.options.one_in, Mask::kMost));
  if (scheme == "all-reduce" && e.options.one_in != 1)
    throw UsageError(
        fmt::format("one_in = {} leaves out parameters, but scheme \"all-reduce\" sends gradients: use 1",
                    e.options.one_in));
  if (!std::isfinite(e.options.clip) || e.options.clip < 0)
    throw UsageError(
        fmt::format("clip = {} is not allowed: it must be finite and at least 0", e.options.clip));
  if (e.inner != nullptr && (e.options.clip > 0 || e.options.skip_not_finite)) {
    throw UsageError(
        "clip and skip_not_finite need one of Starling's rules: around another optimizer call torch's "
        "clip_grad_norm_ before step()");
  }
  check_choco(e.options, e.inner != nullptr);
  check_asynchronous(e.options);
  check_hierarchy(e.options, world, e.inner != nullptr);
  if (scheme == "choco") check_memory(e.options, schedule_of(e.options, world));
  if (e.options.hierarchy == "node") {
    const int size = workers_per_node(e.options, world);
    e.node = {.size = size, .place = world.rank % size};
  }
  e.clipping = Clipping(e.options.clip, e.options.skip_not_finite);
  kernels::best_kernels();  // throws where STARLING_ISA is wrong
  take_new_groups();
  if (e.blocks.empty())
    throw UsageError("there is no parameter to train: at least one must require a gradient");
}

void Optimizer::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  for (std::size_t p = 0; p < group.params().size(); ++p)
    check_parameter(group.params()[p], param_groups_.size(), p);
  torch::optim::Optimizer::add_param_group(group);
  keep_options(param_groups_.back(), group);
}

// The blocks of the parameter groups that have come since the last time, and the connections for all. Collective.
void Optimizer::take_new_groups() {
  Engine& e = *engine_;
  const std::size_t first = e.group_sizes.size();
  Groups& groups = e.inner ? e.inner->param_groups() : param_groups_;
  if (param_groups_.size() > groups.size()) {
    throw UsageError(fmt::format(
        "parameter group {} was added to the optimizer around another one: add it to that other one",
        groups.size()));
  }
  while (param_groups_.size() < groups.size()) add_param_group(groups[param_groups_.size()]);
  const bool in_nodes = e.options.hierarchy == "node", gossips = asynchronous(e.options);
  for (std::size_t g = first; (e.inner != nullptr || in_nodes || gossips) && g < groups.size(); ++g) {
    for (std::size_t p = 0; p < groups[g].params().size(); ++p) {
      const auto type = groups[g].params()[p].scalar_type();
      if (type == at::kFloat) continue;
      throw UsageError(fmt::format(
          "parameter {} of group {} is {}: {}", p, g, c10::toString(type),
          in_nodes
              ? "with hierarchy \"node\" it must be float32, since a node's workers share no fp32 masters"
          : gossips
              ? "with asynchronous gossip it must be float32, since x and x~ are"
              : "around another optimizer it must be float32, since only Starling's rules step the fp32 "
                "master of one in bfloat16 or float16"));
    }
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::size_t now = groups[g].params().size();
    if (g < first && now != e.group_sizes[g]) {
      throw UsageError(fmt::format(
          "parameter group {} was made with {} parameters and has {} now: add them as a group of their own",
          g, e.group_sizes[g], now));
    }
    if (e.inner == nullptr && rule_of(param_groups_[g]).index() != e.rule.index()) {
      throw UsageError(fmt::format(
          "a parameter group has the rule {}, the optimizer {}: groups may differ in options only",
          rule_name(rule_of(param_groups_[g])), rule_name(e.rule)));
    }
  }
  if (param_groups_.size() == first) return;
  append_blocks(e.blocks, param_groups_, first, e.inner ? 0 : rule_states(e.rule), e.options.block_bytes,
                e.options.wire);
  if (e.options.hierarchy == "node") e.share_among_node();
  for (Block& block : e.blocks) block.timeline = e.world.timeline.get();
  for (std::size_t g = first; g < param_groups_.size(); ++g)
    e.group_sizes.push_back(param_groups_[g].params().size());
  if (!e.blocks.empty()) connect(first);
}

void Optimizer::connect(std::size_t first_group) {
  Engine& e = *engine_;
  const World& world = e.world;
  if (e.scheme) {
    // The blocks that are under way are sent again from the parameters, which are the same numbers.
    e.scheme->pause();  // what gossip has averaged is in the parameters
    e.before = counted();
    e.scheme.reset();
    e.exchange.reset();
    e.collectives.reset();
    e.inside_node.reset();
  }
  const std::string channel = fmt::format("{}.{}", e.channel, e.connections++);
  const Schedule schedule = schedule_of(e.options, world);
  const std::string rule = e.inner ? "another optimizer" : rule_name(e.rule);

  e.collectives = std::make_unique<Collectives>(world, channel);
  agree(*e.collectives, world, terms_of(e.options, schedule, rule, e.blocks.size(), param_groups_));
  std::vector<at::Tensor> fresh;
  if (first_group == 0) fresh = e.buffers;
  for (std::size_t g = first_group; g < param_groups_.size(); ++g) {
    const auto& parameters = param_groups_[g].params();
    fresh.insert(fresh.end(), parameters.begin(), parameters.end());
  }
  {
    const c10::AutoGradMode no_gradient(false);
    make_equal(*e.collectives, world, fresh);
  }

  std::vector<std::size_t> sizes;
  for (std::size_t b = 0; b < e.blocks.size(); ++b) {
    e.blocks[b].grid.remember(schedule.rounds.size() * static_cast<std::size_t>(e.options.one_in));
    if (e.owns(b)) sizes.push_back(static_cast<std::size_t>(e.blocks[b].length));
  }
  const bool gossips = asynchronous(e.options);
  if (gossips) sizes.clear();
  e.exchange = std::make_unique<Exchange>(
      world.make_transport(world, channel), gossips ? without_neighbours(world) : schedule, sizes,
      Patience{world.timeouts.meet, world.timeouts.silent, world.timeouts.stalled, e.options.max_wait,
               world.interrupted},
      world.log, world.timeline, e.options.wire, e.options.one_in,
      e.options.scheme == "choco" ? Chooser::sender : Chooser::mask);
  e.exchange->meet();
  e.scheme = make_scheme();
  // Gossip needs no collectives any more; a dead worker must not be able to hang anything through them.
  if (e.options.scheme != "all-reduce") e.collectives.reset();
  e.scheme->begin();
}

std::unique_ptr<Scheme> Optimizer::make_gossip(std::function<void()> adapt) {
  Engine& e = *engine_;
  GossipOptions options{.rates = pair_rates(schedule_of(e.options, e.world), e.options.rate),
                        .wire = e.options.wire,
                        .meet = e.world.timeouts.meet,
                        .silent = e.world.timeouts.silent};
  if (e.options.scheme == "a2cid2") options.momentum = a2cid2_of(options.rates);
  return std::make_unique<Asynchronous>(
      e.blocks, e.world.make_transport(e.world, fmt::format("{}.{}-gossip", e.channel, e.connections)),
      std::move(options), e.world.log, e.world.timeline, std::move(adapt));
}

std::unique_ptr<Scheme> Optimizer::make_scheme() {
  Engine& e = *engine_;
  const bool atc = e.options.scheme == "atc", all_reduce = e.options.scheme == "all-reduce";
  if (e.inner != nullptr) {
    const auto adapt = [&e] { e.inner->step(); };
    if (asynchronous(e.options)) return make_gossip(adapt);
    if (all_reduce) return std::make_unique<AllReduce>(e.blocks, *e.collectives, e.world.size, adapt);
    const auto order = atc ? Around::Order::adapt_then_combine : Around::Order::combine_then_adapt;
    return std::make_unique<Around>(order, e.blocks, *e.exchange, adapt);
  }
  const auto rule = [this](int group) -> const Rule& {
    return rule_of(param_groups_[static_cast<std::size_t>(group)]);
  };
  if (atc) return std::make_unique<Atc>(e.blocks, *e.exchange, rule, e.clipping);
  if (e.options.scheme == "choco") {
    const double gamma = e.options.gamma == 0 ? default_gamma(e.options.one_in) : e.options.gamma;
    return std::make_unique<Choco>(e.blocks, *e.exchange, schedule_of(e.options, e.world).rounds.front(),
                                   e.world.rank, TopK{static_cast<std::uint32_t>(e.options.one_in)}, gamma,
                                   rule, e.clipping);
  }
  if (e.options.hierarchy == "node") {
    World inside = e.world;
    inside.rank = e.node.place;
    inside.size = e.node.size;
    e.inside_node = std::make_unique<Collectives>(
        inside, fmt::format("{}.{}-node-{}", e.channel, e.connections, e.world.rank / e.node.size),
        e.world.rank - e.node.place);
    return std::make_unique<Hierarchical>(e.blocks, e.node, *e.inside_node, *e.exchange, rule, e.clipping);
  }
  const auto adapt = [&e, rule] {
    const auto scale = e.clipping.scale([&] { return sum_of_squares(e.blocks); });
    for (Block& block : e.blocks) update(block, rule(block.group), {}, {}, scale);
  };
  if (asynchronous(e.options)) return make_gossip(adapt);
  if (all_reduce) return std::make_unique<AllReduce>(e.blocks, *e.collectives, e.world.size, adapt);
  return std::make_unique<Cta>(e.blocks, *e.exchange, rule, e.clipping);
}

Optimizer::~Optimizer() = default;

at::Tensor Optimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const c10::AutoGradMode gradient(true);
    loss = closure();
  }
  take_new_groups();
  const c10::AutoGradMode no_gradient(false);
  RECORD_USER_SCOPE("starling::step");
  const Timeline::Scope span(engine_->world.timeline.get(), {.name = "optimizer step"});
  engine_->scheme->step();
  return loss;
}

int Optimizer::average(std::span<float> values) {
  return static_cast<int>(engine_->exchange->average(values).size());
}

int Optimizer::maximum(std::span<std::int64_t> values) {
  return static_cast<int>(engine_->exchange->maximum(values).size());
}

void Optimizer::scale_gradients(std::optional<float> scale) {
  if (engine_->inner != nullptr)
    throw UsageError("scale_gradients needs one of Starling's rules: another optimizer reads .grad as it is");
  engine_->clipping.scale_next(scale);
}

NoSync::NoSync(Optimizer& optimizer) : optimizer_(optimizer) { optimizer_.engine_->scheme->set_sync(false); }

NoSync::~NoSync() { optimizer_.engine_->scheme->set_sync(true); }

double Optimizer::consensus_distance() { return Consensus(*this).distance(); }

const World& Optimizer::world() const { return engine_->world; }

ExchangeStatistics Optimizer::counted() const {
  ExchangeStatistics all = engine_->exchange->statistics();
  all += engine_->scheme->counted();
  all += engine_->before;
  return all;
}

Statistics Optimizer::statistics() const {
  const ExchangeStatistics edges = counted();
  return {.rounds = edges.rounds,
          .committed = edges.committed,
          .aborted = edges.aborted,
          .late = edges.late,
          .bytes_sent = edges.bytes_sent,
          .bytes_in_place = edges.bytes_in_place,
          .directed_aborted = edges.directed_aborted,
          .seconds_waiting = edges.seconds_waiting,
          .skipped = engine_->clipping.skipped(),
          .lost = {edges.lost.begin(), edges.lost.end()}};
}

std::int64_t Optimizer::parameter_count() const {
  std::int64_t count = 0;
  for (const Block& block : engine_->blocks) {
    for (const Segment& segment : block.segments) count += segment.length;
  }
  return count;
}

}  // namespace starling
