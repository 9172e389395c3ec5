#include "starling/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include "starling/core/error.h"
#include "starling/optim/agreement.h"
#include "starling/optim/engine.h"
#include "starling/optim/rule_step.h"
#include "starling/optim/schemes/all_reduce.h"
#include "starling/optim/schemes/cta.h"
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

// The exchange of all-reduce has no neighbours: its edges serve the exact averages only.
Schedule schedule_of(const Options& options, const World& world) {
  if (options.scheme == "all-reduce") return {"none", {Graph(world.size)}};
  const int per_node = options.workers_per_node == 0 ? world.local_size : options.workers_per_node;
  return make_schedule(options.topology, world.size, per_node);
}

Terms terms_of(const Options& options, const Rule& rule, const std::vector<Block>& blocks,
               const Groups& groups) {
  Terms terms{{"scheme", options.scheme},
              {"topology", options.topology},
              {"rule", rule_name(rule)},
              {"block_bytes", std::to_string(options.block_bytes)},
              {"workers_per_node", std::to_string(options.workers_per_node)},
              {"number of blocks", std::to_string(blocks.size())}};
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t p = 0; p < groups[g].params().size(); ++p) {
      const at::Tensor& tensor = groups[g].params()[p];
      terms.emplace_back(fmt::format("parameter {} of group {}", p, g),
                         fmt::format("{} with strides {}", fmt::join(tensor.sizes(), "x"),
                                     fmt::join(tensor.strides(), ",")));
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
    : Optimizer(Groups{{std::move(parameters)}}, rule, options, world, {}) {}

Optimizer::Optimizer(const Groups& groups, Rule rule, Options options, const World& world)
    : Optimizer(groups, rule, options, world, {}) {}

Optimizer::Optimizer(const Groups& groups, Rule rule, Options options, const World& world,
                     std::vector<at::Tensor> buffers)
    : torch::optim::Optimizer(groups, rule_options(rule)), engine_(std::make_unique<Engine>()) {
  Engine& e = *engine_;
  e.world = world;
  e.options = options;
  e.channel = fmt::format("optimizer-{}", (*world.optimizers)++);
  e.buffers = std::move(buffers);
  if (options.scheme != "cta" && options.scheme != "all-reduce") {
    throw UsageError(fmt::format("scheme \"{}\" is unknown: cta or all-reduce", options.scheme));
  }
  const Schedule schedule = schedule_of(options, world);
  for (auto& group : param_groups_) {
    if (rule_of(group).index() != rule.index()) {
      throw UsageError(fmt::format(
          "a parameter group has the rule {}, the optimizer {}: groups may differ in options only",
          rule_name(rule_of(group)), rule_name(rule)));
    }
  }
  e.blocks = make_blocks(param_groups_, rule_states(rule), options.block_bytes);
  if (e.blocks.empty())
    throw UsageError("there is no parameter to train: at least one must require a gradient");

  e.collectives = std::make_unique<Collectives>(world, e.channel);
  agree(*e.collectives, world, terms_of(options, rule, e.blocks, param_groups_));
  std::vector<at::Tensor> all = e.buffers;
  for (const auto& group : param_groups_) {
    e.parameters += group.params().size();
    all.insert(all.end(), group.params().begin(), group.params().end());
  }
  {
    const c10::AutoGradMode no_gradient(false);
    make_equal(*e.collectives, world, all);
  }

  std::vector<std::size_t> sizes;
  for (const Block& block : e.blocks) sizes.push_back(static_cast<std::size_t>(block.length));
  e.exchange = std::make_unique<Exchange>(
      world.make_transport(world, e.channel), schedule, sizes,
      Patience{world.timeouts.meet, world.timeouts.silent, world.timeouts.stalled, options.max_wait},
      world.log);
  e.exchange->meet();
  const auto rule_of_group = [this](int group) -> const Rule& {
    return rule_of(param_groups_[static_cast<std::size_t>(group)]);
  };
  if (options.scheme == "cta") {
    e.collectives.reset();  // it has served; a dead worker must not be able to hang anything through it
    e.scheme = std::make_unique<Cta>(e.blocks, *e.exchange, rule_of_group);
  } else {
    e.scheme = std::make_unique<AllReduce>(e.blocks, *e.collectives, world.size, rule_of_group);
  }
  e.scheme->begin();
}

Optimizer::~Optimizer() = default;

at::Tensor Optimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const c10::AutoGradMode gradient(true);
    loss = closure();
  }
  std::size_t parameters = 0;
  for (const auto& group : param_groups_) parameters += group.params().size();
  if (parameters != engine_->parameters) {
    throw UsageError(fmt::format(
        "the optimizer was made for {} parameters and has {} now: parameters cannot be added later",
        engine_->parameters, parameters));
  }
  const c10::AutoGradMode no_gradient(false);
  engine_->scheme->step();
  return loss;
}

int Optimizer::average(std::span<float> values) {
  return static_cast<int>(engine_->exchange->average(values).size());
}

int Optimizer::maximum(std::span<std::int64_t> values) {
  return static_cast<int>(engine_->exchange->maximum(values).size());
}

double Optimizer::consensus_distance() { return Consensus(*this).distance(); }

const World& Optimizer::world() const { return engine_->world; }

Statistics Optimizer::statistics() const {
  const ExchangeStatistics edges = engine_->exchange->statistics();
  return {.rounds = edges.rounds,
          .committed = edges.committed,
          .aborted = edges.aborted,
          .late = edges.late,
          .bytes_sent = edges.bytes_sent + engine_->scheme->bytes_computed(),
          .directed_aborted = edges.directed_aborted,
          .seconds_waiting = edges.seconds_waiting + engine_->scheme->seconds_waiting(),
          .lost = {edges.lost.begin(), edges.lost.end()}};
}

std::int64_t Optimizer::parameter_count() const {
  std::int64_t count = 0;
  for (const Block& block : engine_->blocks) count += block.length;
  return count;
}

}  // namespace starling
