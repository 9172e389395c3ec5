#include "starling/optim/optimizer.h"

#include <algorithm>
#include <set>

#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include "starling/core/error.h"
#include "starling/core/failpoint.h"
#include "starling/kernels/update.h"
#include "starling/optim/agreement.h"
#include "starling/optim/average.h"
#include "starling/optim/engine.h"
#include "starling/optim/gathering.h"
#include "starling/optim/options.h"
#include "starling/optim/parameter_groups.h"
#include "starling/optim/pass.h"
#include "starling/optim/rule_step.h"
#include "starling/optim/schemes/table.h"

namespace starling {
namespace {

using Groups = std::vector<torch::optim::OptimizerParamGroup>;

// Every tensor of the module once, by name. Shared tensors have their first name.
std::vector<std::pair<std::string, at::Tensor>> tensors_of(const torch::nn::Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::set<const void*> seen;
  for (const auto& all : {module.named_parameters(), module.named_buffers()}) {
    for (const auto& item : all) {
      if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second)
        tensors.emplace_back(item.key(), item.value());
    }
  }
  return tensors;
}

// Those of the module that the groups do not have.
std::vector<at::Tensor> frozen_in(const torch::nn::Module& module, const Groups& groups) {
  std::set<const void*> seen;
  for (const auto& group : groups) {
    for (const at::Tensor& p : group.params()) seen.insert(p.unsafeGetTensorImpl());
  }
  std::vector<at::Tensor> frozen;
  for (const at::Tensor& p : module.parameters()) {
    if (seen.insert(p.unsafeGetTensorImpl()).second) frozen.push_back(p);
  }
  return frozen;
}

std::vector<const void*> places_of(const std::vector<at::Tensor>& tensors) {
  std::vector<const void*> places;
  for (const at::Tensor& tensor : tensors) places.push_back(tensor.unsafeGetTensorImpl());
  return places;
}

// As torch does, but names the group.
const Groups& checked(const Groups& groups) {
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t p = 0; p < groups[g].params().size(); ++p) check_parameter(groups[g].params()[p], g, p);
  }
  return groups;
}

// torch 2.15 and later merge a group's options with the optimizer's, and drop options of another
// type.
void keep_options(torch::optim::OptimizerParamGroup& kept, const torch::optim::OptimizerParamGroup& given) {
  if (given.has_options()) kept.set_options(given.options().clone());
}

// scale_gradients() is for one step, however that ends.
struct ForgetsScale {
  Clipping& clipping;
  ~ForgetsScale() { clipping.scale_next(1); }
};

// As memory does that is corrupted: the last value of the last parameter.
void set_last_value(const Groups& groups, double value) {
  at::Tensor last;
  for (const auto& group : groups) {
    for (const at::Tensor& p : group.params()) {
      if (p.numel() > 0) last = p;
    }
  }
  if (!last.defined()) return;
  while (last.dim() > 0) last = last.select(0, -1);
  last.fill_(value);
}

}  // namespace

Optimizer::Optimizer(torch::nn::Module& module, Rule rule, Options options, const World& world)
    : Optimizer(module, groups_of(module, rule), rule, options, world) {}

Optimizer::Optimizer(torch::nn::Module& module, const Groups& groups, Rule rule, Options options,
                     const World& world)
    : Optimizer(groups, rule, std::move(options), world, module.buffers(), frozen_in(module, groups),
                tensors_of(module)) {}

Optimizer::Optimizer(std::vector<at::Tensor> parameters, Rule rule, Options options, const World& world)
    : Optimizer(Groups{{std::move(parameters)}}, rule, options, world) {}

Optimizer::Optimizer(torch::nn::Module& module, torch::optim::Optimizer& inner, Options options,
                     const World& world)
    : Optimizer(inner, std::move(options), world, module.buffers(), frozen_in(module, inner.param_groups()),
                tensors_of(module)) {}

Optimizer::Optimizer(const Groups& groups, Rule rule, Options options, const World& world,
                     std::vector<at::Tensor> buffers, std::vector<at::Tensor> frozen)
    : Optimizer(groups, rule, std::move(options), world, std::move(buffers), std::move(frozen), {}) {}

Optimizer::Optimizer(torch::optim::Optimizer& inner, Options options, const World& world,
                     std::vector<at::Tensor> buffers, std::vector<at::Tensor> frozen)
    : Optimizer(inner, std::move(options), world, std::move(buffers), std::move(frozen), {}) {}

Optimizer::Optimizer(const Groups& groups, Rule rule, Options options, const World& world,
                     std::vector<at::Tensor> buffers, std::vector<at::Tensor> frozen, NamedTensors model)
    : torch::optim::Optimizer(checked(groups), rule_options(rule)), engine_(std::make_unique<Engine>()) {
  for (std::size_t g = 0; g < groups.size(); ++g) keep_options(param_groups_[g], groups[g]);
  engine_->rule = rule;
  engine_->frozen = std::move(frozen);
  engine_->model = std::move(model);
  begin(std::move(options), world, std::move(buffers));
}

Optimizer::Optimizer(torch::optim::Optimizer& inner, Options options, const World& world,
                     std::vector<at::Tensor> buffers, std::vector<at::Tensor> frozen, NamedTensors model)
    : torch::optim::Optimizer(inner.param_groups(), inner.defaults().clone()),
      engine_(std::make_unique<Engine>()) {
  engine_->inner = &inner;
  engine_->frozen = std::move(frozen);
  engine_->model = std::move(model);
  begin(std::move(options), world, std::move(buffers));
}

void Optimizer::begin(Options options, const World& world, std::vector<at::Tensor> buffers) {
  Engine& e = *engine_;
  e.world = world;
  e.options = std::move(options);
  e.channel = optimizer_channel((*world.optimizers)++);
  set_buffers(std::move(buffers));
  check_options(e.options, world.size, world.local_size, e.inner != nullptr);
  if (e.options.hierarchy == "node") {
    const int size = workers_per_node(e.options, world.local_size);
    e.node = {.size = size, .place = world.rank % size};
  }
  check_rejoin(e.world, e.options, e.inner);
  check_partition(e.world, e.options);
  e.renew = [this] { renew(/*between_steps=*/false); };
  e.clipping = Clipping(e.options.clip, e.options.skip_not_finite, e.options.loss_scaling);
  kernels::best_kernels();  // throws if STARLING_ISA is wrong
  if (level_from_environment() == Level::debug) e.data_edits.emplace();
  take_new_groups();
  if (!e.blocks.empty()) return;
  const bool none = std::ranges::all_of(param_groups_, [](auto& group) { return group.params().empty(); });
  throw UsageError(none ? "there is no parameter to train: at least one must require a gradient"
                        : "there is no parameter to train: all have the size 0");
}

void Optimizer::set_buffers(std::vector<at::Tensor> buffers) {
  check_averaged("buffer", buffers);
  engine_->buffers = std::move(buffers);
}

void Optimizer::fails() {
  if (engine_->exchange) engine_->exchange->fails();
}

void Optimizer::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  for (std::size_t p = 0; p < group.params().size(); ++p)
    check_parameter(group.params()[p], param_groups_.size(), p);
  torch::optim::Optimizer::add_param_group(group);
  keep_options(param_groups_.back(), group);
}

// Collective. Makes blocks for the parameter groups that were added since the last call, and new
// connections for all blocks.
void Optimizer::take_new_groups() {
  Engine& e = *engine_;
  const std::size_t first = e.taken.size();
  Groups& groups = e.inner ? e.inner->param_groups() : param_groups_;
  if (groups.size() < first) {
    throw UsageError(
        fmt::format("parameter group {} is gone, which the optimizer was made with: groups stay, and an "
                    "unused one has parameters without gradients",
                    groups.size()));
  }
  if (param_groups_.size() > groups.size()) {
    throw UsageError(fmt::format(
        "parameter group {} was added to the optimizer around another one: add it to that other one",
        groups.size()));
  }
  while (param_groups_.size() < groups.size()) add_param_group(groups[param_groups_.size()]);
  for (std::size_t g = first; g < groups.size(); ++g) {
    const std::string float32 = needs_float32(e.options, e.inner != nullptr);
    for (std::size_t p = 0; p < groups[g].params().size() && !float32.empty(); ++p) {
      const at::ScalarType type = groups[g].params()[p].scalar_type();
      if (type != at::kFloat)
        throw UsageError(
            fmt::format("parameter {} of group {} is {}: {}", p, g, c10::toString(type), float32));
    }
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto& now = groups[g].params();
    if (g < first && now.size() != e.taken[g].size()) {
      throw UsageError(fmt::format(
          "parameter group {} was made with {} parameters and has {} now: add them as a group of their own",
          g, e.taken[g].size(), now.size()));
    }
    const auto same = [](const at::Tensor& p, const void* place) { return p.unsafeGetTensorImpl() == place; };
    if (g < first && !std::ranges::equal(now, e.taken[g], same)) {
      throw UsageError(fmt::format(
          "parameter group {} has other parameters than it was made with: add them as a group of their own",
          g));
    }
    if (e.inner == nullptr && rule_of(param_groups_[g]).index() != e.rule.index()) {
      throw UsageError(fmt::format(
          "a parameter group has the rule {}, the optimizer {}: groups may differ in options only",
          rule_name(rule_of(param_groups_[g])), rule_name(e.rule)));
    }
  }
  if (param_groups_.size() == first) return;
  const std::size_t first_block = e.blocks.size();
  append_blocks(e.blocks, param_groups_, first, e.options.block_bytes, e.options.wire,
                /*undivided=*/scheme_of(e.options).traits.wire_values != nullptr);
  std::set<std::string> not_kept;
  for (std::size_t b = first_block; b < e.blocks.size(); ++b) {
    if (!e.blocks[b].on_device) continue;
    Device& device = *e.blocks[b].on_device->device();
    device.set_rank(e.world.rank);
    not_kept.insert(device.not_kept());
  }
  for (const std::string& why : not_kept) {
    if (why.empty()) continue;
    e.world.log(Level::warning,
                fmt::format("the update was compiled for the GPU, and each process will do so "
                            "again, since it cannot be kept: {}",
                            why));
  }
  if (e.options.hierarchy == "node") e.share_among_node();
  keep_states();
  for (Block& block : e.blocks) {
    block.timeline = e.world.timeline.get();
    block.clears = e.options.clear_gradients;
  }
  e.gradient_spans.reset();
  if (e.world.timeline) e.gradient_spans = std::make_unique<GradientSpans>(e.blocks, *e.world.timeline);
  for (std::size_t g = first; g < param_groups_.size(); ++g)
    e.taken.push_back(places_of(param_groups_[g].params()));
  if (e.blocks.empty()) return;
  try {
    connect(first);
  } catch (...) {
    e.disconnect();
    throw;
  }
}

// Makes the states of new blocks. If a group's SGD has got momentum since, makes its momentum: zero
// at first, as in torch.
void Optimizer::keep_states() {
  Engine& e = *engine_;
  if (e.inner != nullptr) return;
  std::size_t wanted = 0;
  for (auto& group : param_groups_)
    wanted = std::max(wanted, static_cast<std::size_t>(rule_states(rule_of(group))));
  for (std::size_t b = 0; b < e.blocks.size(); ++b) {
    if (e.owns(b) && e.blocks[b].states.size() < wanted) e.blocks[b].keep(static_cast<int>(wanted));
  }
}

Optimizer::~Optimizer() = default;

bool Optimizer::counts(bool waits) const {
  if (engine_->options.jump_guard == 0) return true;
  if (waits) {
    settle(engine_->blocks);
    engine_->connected().decide();
  }
  return engine_->scheme->standing() == Standing::usual;
}

std::uint64_t Optimizer::steps() const { return engine_->steps; }
bool Optimizer::joined() const { return engine_->joined; }

at::Tensor Optimizer::step(LossClosure closure) {
  const ForgetsScale forgets{engine_->clipping};
  count_failpoint_step();
  at::Tensor loss;
  if (closure) {
    const c10::AutoGradMode gradient(true);
    loss = closure();
  }
  const std::optional<double> wrong = failpoint("optimizer");
  engine_->needs_own_parameters("step()");
  settle(engine_->blocks);
  take_new_groups();
  for (const Block& block : engine_->blocks) {
    auto& group = param_groups_[static_cast<std::size_t>(block.group)];
    check_pass(block, engine_->inner != nullptr ? nullptr : &rule_of(group));
  }
  keep_states();
  engine_->connected();
  const c10::AutoGradMode no_gradient(false);
  if (wrong) set_last_value(param_groups_, *wrong);
  engine_->wait_for_majority();
  engine_->joined = !keep_membership();
  if (engine_->joined) return loss;
  RECORD_USER_SCOPE("starling::step");
  const Timeline::Scope span(engine_->world.timeline.get(), {.name = "optimizer step"});
  if (engine_->data_edits) engine_->data_edits->look(param_groups_, engine_->world.log);
  make_step();
  ++engine_->steps;
  if (engine_->data_edits) engine_->data_edits->note(param_groups_);
  return loss;
}

// The scheme's step or a local one, then the mean and the outer step, each when its time has come.
// In the outer optimizer's warm-up each step of the scheme's has a mean.
void Optimizer::make_step() {
  Engine& e = *engine_;
  const bool merges = ++e.made == e.period();
  const bool of_scheme = e.made % static_cast<std::uint64_t>(e.options.every) == 0;
  of_scheme ? e.scheme->step() : e.local->all();
  clear_other_gradients(e.blocks);
  if (!merges && !(of_scheme && e.outer && e.outer->warms_up())) return;
  if (merges) e.made = 0;
  if (e.options.mean_every > 0) {
    const Operation operation(*this);
    const auto outer_step = [&] {
      if (merges && e.outer) e.outer->step(e.blocks, nullptr);
    };
    Consensus(*this).keep(outer_step, &Scheme::take_mean);
  } else if (e.outer) {
    settle(e.blocks);
    e.outer->step(e.blocks, e.exchange.get());
  }
}

int Optimizer::average(std::span<float> values) {
  settle(engine_->blocks);
  return engine_->on_edges([&](Exchange& edges) { return static_cast<int>(edges.average(values).size()); });
}

int Optimizer::maximum(std::span<std::int64_t> values) {
  settle(engine_->blocks);
  return engine_->on_edges([&](Exchange& edges) { return static_cast<int>(edges.maximum(values).size()); });
}

void Optimizer::wait_for_all() {
  std::int64_t nothing = 0;
  if (!engine_->in_pairs()) return;
  stand_by();
  maximum({&nothing, 1});
}

void Optimizer::stand_by() { engine_->scheme->stand_by(); }

void Optimizer::scale_gradients(std::optional<float> scale) {
  if (engine_->inner != nullptr)
    throw UsageError("scale_gradients needs one of Starling's rules: another optimizer reads .grad as it is");
  if (engine_->clipping.loss_scale() != nullptr)
    throw UsageError("scale_gradients and loss_scaling are not for the same optimizer: one of them");
  if (scheme_of(engine_->options).traits.sums_gradients && scale != 1)
    throw UsageError(
        fmt::format("scale_gradients is not for scheme \"{}\": gradients of all workers are added up, and "
                    "each would have a scale of its own",
                    engine_->options.scheme.name));
  engine_->clipping.scale_next(scale);
}

double Optimizer::loss_scale() const {
  const LossScale* const scale = engine_->clipping.loss_scale();
  return scale != nullptr ? scale->value() : 1;
}

NoSync::NoSync(Optimizer& optimizer) : optimizer_(optimizer) {
  optimizer_.engine_->connected();
  optimizer_.engine_->scheme->set_sync(false);
}

NoSync::~NoSync() { optimizer_.engine_->scheme->set_sync(true); }

double Optimizer::consensus_distance() { return Consensus(*this).distance(); }

const World& Optimizer::world() const { return engine_->world; }

std::uint64_t Optimizer::position() const {
  const Engine& e = *engine_;
  return e.connected().position(e.scheme->sends_ahead()) + e.cycle * e.made;
}

void Optimizer::restart(std::optional<std::uint64_t> position) {
  engine_->needs_own_parameters("a state is loaded");
  together(*this, "load its state", [&] {
    if (!position) throw Error("this worker could not load its state");
  });
  renew_outer();
  go_on(*position, &Scheme::restart);
}

void Optimizer::begin_again() {
  const c10::AutoGradMode no_gradient(false);
  engine_->needs_own_parameters("begin_again()");
  engine_->set_grids({});
  renew_outer();
  go_on(position(), &Scheme::restart);  // a worker that was left behind has another position
}

// The parameters are no longer what the outer optimizer has merged to.
void Optimizer::renew_outer() {
  if (!engine_->outer) return;
  settle(engine_->blocks);
  engine_->outer->restart(engine_->blocks);
}

void Optimizer::go_on(std::uint64_t position, const std::function<void(Scheme&)>& change) {
  engine_->check_parameters();
  engine_->scheme->pause();  // on all workers, before the exchange lets any worker continue
  if (const std::uint64_t period = engine_->period(); period > 1) {
    engine_->made = position / engine_->cycle % period;
    position %= engine_->cycle;
  }
  engine_->on_edges([&](Exchange& edges) { edges.restart(position); });
  change(*engine_->scheme);
  try {
    engine_->scheme->begin();
  } catch (const RenewalCalled&) {
    engine_->renew();  // it begins anew from the same parameters
  }
}

}  // namespace starling
