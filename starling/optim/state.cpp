// An optimizer's state as tensors, and back (checkpoint.h has their names).
#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starling/core/crc32c.h"
#include "starling/core/error.h"
#include "starling/core/whole.h"
#include "starling/optim/agreement.h"
#include "starling/optim/checkpoint.h"
#include "starling/optim/engine.h"
#include "starling/optim/pass.h"
#include "starling/optim/rule_step.h"
#include "starling/optim/state_file.h"
#include "starling/optim/torch_state.h"

namespace starling {

namespace {

using Groups = std::vector<torch::optim::OptimizerParamGroup>;

// All tensors of a state. Loading fills them. apply() then copies those that are copies to their
// place.
struct State {
  std::string rule;  // its name
  Named model;
  Named guests;                     // tensors of the caller, by their full names
  std::vector<at::Tensor> options;  // per group
  at::Tensor steps, rng;
  at::Tensor loss_scale;

  // `engine`: an Optimizer's. Its gossip stands still from here to the next step. Without `values`,
  // the copies of the blocks' and the scheme's state are not filled.
  State(auto& engine, Groups& groups, bool values, bool with_scheme = true)
      : guests(engine.guests),
        values_(values),
        blocks_(engine.blocks),
        own_(engine.own_blocks()),
        node_(engine.node),
        groups_(groups),
        visit_([&engine, with_scheme](StateVisitor& visitor) {
          if (with_scheme) engine.scheme->state(visitor);
          if (engine.outer) engine.outer->state(visitor);
        }),
        scale_(engine.clipping.loss_scale()),
        state_names_(rule_state_names(engine.rule)) {
    engine.stand_still();
    // before anything is gathered
    if (engine.inner != nullptr) inner_ = TorchState::of(*engine.inner);
    rule = inner_ ? inner_->name() : rule_name(rule_of(groups.front()));
    const auto names = name_model(engine.model);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      options.push_back(numbers(inner_ ? inner_->values(g) : rule_values(rule_of(groups[g]))));
      for (const at::Tensor& parameter : groups[g].params()) {
        const void* const key = parameter.unsafeGetTensorImpl();
        index_[key] = parameters_.size();
        parameters_.push_back(
            {parameter, names.at(key), static_cast<int>(g), takes_whole(groups[g], parameter)});
      }
    }
    steps = at::zeros({static_cast<std::int64_t>(parameters_.size())}, at::kLong);
    each_segment([&](Block&, Segment& s, Parameter& p, std::int64_t) {
      s.check();
      p.kept += s.length;
      p.whole = s.whole;  // its options may have changed since
    });
    inner_ ? gather_inner() : gather_blocks();
    Gather gather(*this);
    visit_(gather);
    if (scale_ != nullptr)
      loss_scale = numbers({scale_->value(), static_cast<double>(scale_->finite_steps())});
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    rng = generator.get_state();
  }

  // Another optimizer makes some of a parameter's state in its first step. This makes the state
  // that the given state has for it.
  void make_as_in(const GivenState& given) {
    if (!inner_) return;
    for (Parameter& p : parameters_) {
      for (std::size_t k = 0; k < fields_.size(); ++k)
        p.state[k] =
            given.state.tensors.contains(fields_[k] + p.name) ? at::empty_like(p.tensor) : at::Tensor();
    }
  }

  std::vector<SchemeState> of_scheme() const {
    std::vector<SchemeState> all;
    for (const SchemeValues& field : scheme_values_) all.push_back({field.name, field.fresh});
    for (const SchemeNumbers& field : scheme_numbers_)
      all.push_back({.name = field.name, .numbers = field.of.fresh});
    return all;
  }

  std::vector<std::string> of_rule() const {
    std::vector<std::string> all = fields_;
    for (const RuleStateName& state : state_names_) all.push_back(fmt::format("{}.", state.name));
    return all;
  }

  void drop_scheme() { scheme_values_.clear(), scheme_numbers_.clear(); }

  // Keeps names, types and shapes only.
  void drop_values() {
    const auto drop = [](at::Tensor& tensor) {
      if (tensor.defined()) tensor = at::empty_like(tensor, tensor.options().device(at::kMeta));
    };
    for (Parameter& p : parameters_) {
      std::ranges::for_each(p.state, drop);
      std::ranges::for_each(p.of_scheme, drop);
    }
  }

  // Describes this worker's part of the optimizer's state. Two equal texts mean the same values of
  // the same parameters.
  std::string share() {
    if (!divided()) return kWholeShare;
    std::uint32_t sum = 0;
    each_segment([&](Block&, Segment& s, Parameter& p, std::int64_t) {
      const std::string text = fmt::format("{} {} {};", p.name, s.begin, s.length);
      sum = crc32c(std::as_bytes(std::span(text)), sum);
    });
    return fmt::format("that of worker {} of {} in a node, with checksum {:08x}", node_.place, node_.size,
                       sum);
  }

  Named all() const {
    Named all;
    for (const auto& [name, tensor] : model) all.emplace_back("model." + name, tensor);
    all.insert(all.end(), guests.begin(), guests.end());
    for (std::size_t k = 0; k < fields_.size(); ++k) {
      for (const Parameter& p : parameters_) {
        if (p.state[k].defined()) all.emplace_back(fields_[k] + p.name, p.state[k]);
      }
    }
    for (std::size_t k = 0; k < scheme_values_.size(); ++k) {
      for (const Parameter& p : parameters_)
        all.emplace_back(fmt::format("{}.{}", scheme_values_[k].name, p.name), p.of_scheme[k]);
    }
    for (const SchemeNumbers& field : scheme_numbers_) all.emplace_back(field.name, field.tensor);
    if (loss_scale.defined()) all.emplace_back("loss_scale", loss_scale);
    for (std::size_t g = 0; g < options.size(); ++g)
      all.emplace_back(fmt::format("options.{}", g), options[g]);
    all.emplace_back("steps", steps);
    all.emplace_back("rng", rng);
    return all;
  }

  // Checks the loaded values, so that apply() cannot fail on them.
  void check(const GivenState& given) const {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      try {
        if (inner_) {
          inner_->check_values(values(g));
        } else {
          Rule copy = rule_of(groups_[g]);
          set_rule_values(copy, values(g));
        }
      } catch (const UsageError& error) {
        const std::string name = fmt::format("options.{}", g);
        given.refuse(name, fmt::format("tensor \"{}\": {}", name, error.what()));
      }
    }
    for (const Parameter& p : parameters_) {
      if (!inner_) break;
      const std::string field = inner_->lacks({0, p.state}, values(static_cast<std::size_t>(p.group)));
      if (!field.empty()) given.refuse("", fmt::format("there is no tensor \"{}.{}\"", field, p.name));
    }
    const auto* const counts = steps.const_data_ptr<std::int64_t>();
    if (std::any_of(counts, counts + steps.numel(), [](std::int64_t count) { return count < 0; }))
      given.refuse("steps", "tensor \"steps\": a count is negative");
    const auto whole = [](double number) { return is_whole_number(number); };
    for (const SchemeNumbers& field : scheme_numbers_) {
      const std::string why = field.of.refusal(values_in(field.tensor));
      if (!why.empty()) given.refuse(field.name, fmt::format("tensor \"{}\": {}", field.name, why));
    }
    if (loss_scale.defined()) {
      const auto* const values = loss_scale.const_data_ptr<double>();
      if (!LossScale::allows(values[0]) || !whole(values[1]))
        given.refuse("loss_scale", "tensor \"loss_scale\": wants a float above 0 and a whole number from 0");
    }
    try {
      at::make_generator<at::CPUGeneratorImpl>().set_state(rng);
    } catch (const c10::Error&) {
      given.refuse("rng", "tensor \"rng\" is not a state of torch's random numbers");
    }
  }

  // Applies all but the scheme's state.
  void apply() {
    for (std::size_t g = 0; g < groups_.size(); ++g)
      inner_ ? inner_->set_values(g, values(g)) : set_rule_values(rule_of(groups_[g]), values(g));
    inner_ ? spread_inner() : spread_blocks();
    if (scale_ != nullptr) {
      const auto* const values = loss_scale.const_data_ptr<double>();
      scale_->set(values[0], static_cast<std::int64_t>(values[1]));
    }
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    generator.set_state(rng);
  }

  // Call it between the scheme's restart() and begin().
  void apply_to_scheme() {
    Spread spread(*this);
    visit_(spread);
  }

 private:
  struct Parameter {
    at::Tensor tensor;
    std::string name;
    int group;
    bool whole;             // a matrix that the rule updates as one: it keeps the first state only
    std::int64_t kept = 0;  // values whose state is kept here: all, unless the state is divided
    // By field, with the parameter's strides. A divided state has the kept values only, in memory
    // order.
    std::vector<at::Tensor> state{};
    std::vector<at::Tensor> of_scheme{};  // by field of the scheme, with the parameter's strides
  };
  struct SchemeValues {
    std::string name;
    Fresh fresh;
  };
  struct SchemeNumbers {
    std::string name;
    StateVisitor::Numbers of;
    at::Tensor tensor;
  };

  // Copies the scheme's state to this one.
  class Gather final : public StateVisitor {
   public:
    explicit Gather(State& state) : state_(state) {}
    void values(const std::string& name, Fresh fresh, const Access& access) override {
      state_.scheme_values_.push_back({name, fresh});
      for (Parameter& p : state_.parameters_) {
        at::Tensor& here = p.of_scheme.emplace_back(floats_like(p.tensor));
        if (!state_.values_) continue;
        // A parameter of a new group has no segments yet. Its state begins so.
        fresh == Fresh::zero ? here.zero_() : here.copy_(p.tensor);
      }
      if (!state_.values_) return;
      state_.each_of_scheme(state_.scheme_values_.size() - 1, access,
                            [](const at::Tensor& here, const at::Tensor& there) { here.copy_(there); });
    }
    void numbers(const std::string& name, const Numbers& of) override {
      state_.scheme_numbers_.push_back({name, of, starling::numbers(of.now)});
    }

   private:
    State& state_;
  };

  // Copies it back, in the same order.
  class Spread final : public StateVisitor {
   public:
    explicit Spread(State& state) : state_(state) {}
    void values(const std::string&, Fresh, const Access& access) override {
      state_.each_of_scheme(field_++, access,
                            [](const at::Tensor& here, const at::Tensor& there) { there.copy_(here); });
    }
    void numbers(const std::string&, const Numbers& of) override {
      of.set(values_in(state_.scheme_numbers_[number_++].tensor));
    }

   private:
    State& state_;
    std::size_t field_ = 0, number_ = 0;
  };

  static std::span<const double> values_in(const at::Tensor& numbers) {
    return {numbers.const_data_ptr<double>(), static_cast<std::size_t>(numbers.numel())};
  }

  // Calls f(block, segment, parameter, begin) for all segments of own blocks. `begin`: the
  // segment's place in the kept values.
  template <class F>
  void each_segment(const F& f) {
    std::vector<std::int64_t> begin(parameters_.size());
    for (Block* const block : own_) {
      for (Segment& s : block->segments) {
        const std::size_t i = index(s);
        f(*block, s, parameters_[i], begin[i]);
        begin[i] += s.length;
      }
    }
  }

  // Calls f(here, there) for each segment of a field of the scheme: in this state, and in the
  // scheme's memory.
  template <class F>
  void each_of_scheme(std::size_t field, const StateVisitor::Access& access, const F& f) {
    for (Block& block : blocks_) {
      access(block, [&](const at::Tensor& all) {
        for (const Segment& s : block.segments) {
          const at::Tensor& here = parameters_[index(s)].of_scheme[field];
          f(stretch(here, s.begin, s.length), all.narrow(0, s.offset, s.length));
        }
      });
    }
  }

  // The module's tensors, and as GROUP.INDEX the groups' other parameters (all, without a module).
  std::unordered_map<const void*, std::string> name_model(const Named& module) {
    std::unordered_map<const void*, std::string> names;
    model = module;
    for (const auto& [name, tensor] : module) names[tensor.unsafeGetTensorImpl()] = name;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      for (std::size_t p = 0; p < groups_[g].params().size(); ++p) {
        const at::Tensor& parameter = groups_[g].params()[p];
        const auto [at, fresh] =
            names.try_emplace(parameter.unsafeGetTensorImpl(), fmt::format("{}.{}", g, p));
        if (fresh) model.emplace_back(at->second, parameter);
      }
    }
    return names;
  }

  void gather_blocks() {
    const std::size_t states = own_.empty() ? 0 : own_.front()->states.size();
    for (const RuleStateName& state : state_names_.first(states))
      fields_.push_back(fmt::format("{}.", state.name));
    fields_.push_back("master.");
    for (Parameter& p : parameters_) {
      p.state.resize(fields_.size());
      for (std::size_t k = 0; k < (p.whole ? std::min<std::size_t>(states, 1) : states); ++k) {
        if (!divided()) p.state[k] = floats_like(p.tensor);
        if (divided() && p.kept > 0) p.state[k] = at::empty({p.kept}, at::kFloat);
      }
      if (p.tensor.scalar_type() != at::kFloat) p.state[states] = floats_like(p.tensor);
    }
    each_segment([&](Block&, Segment& s, Parameter&, std::int64_t) { step_count(s) = s.steps; });
    if (!values_) return;
    with_masters(blocks_);
    // A parameter of a new group has no segments yet. Its state begins so.
    for (Parameter& p : parameters_) {
      for (std::size_t k = 0; k < fields_.size(); ++k) {
        if (!p.state[k].defined()) continue;
        k < states ? p.state[k].zero_() : p.state[k].copy_(p.tensor);
      }
    }
    each_segment([&](Block& block, Segment& s, Parameter& p, std::int64_t begin) {
      const std::vector<at::Tensor> values = values_of(block, s);
      for (std::size_t k = 0; k < values.size(); ++k) {
        if (values[k].defined()) stretch(p.state[k], begin, s.length).copy_(values[k]);
      }
    });
  }
  void spread_blocks() {
    each_segment([&](Block& block, Segment& s, Parameter& p, std::int64_t begin) {
      s.steps = step_count(s);
      const std::vector<at::Tensor> values = values_of(block, s);
      for (std::size_t k = 0; k < values.size(); ++k) {
        if (values[k].defined()) values[k].copy_(stretch(p.state[k], begin, s.length));
      }
    });
  }

  // By field: the segment's values in the block; undefined: it has none.
  static std::vector<at::Tensor> values_of(Block& block, Segment& s) {
    std::vector<at::Tensor> values;
    for (std::size_t k = 0; k < block.states.size(); ++k) values.push_back(block.state_of(s, k));
    values.push_back(s.master);
    return values;
  }

  void gather_inner() {
    for (const std::string& field : inner_->fields()) fields_.push_back(field + ".");
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      Parameter& p = parameters_[i];
      TorchState::Fields state = inner_->get(p.tensor, p.name);
      steps.mutable_data_ptr<std::int64_t>()[i] = state.steps;
      p.state = std::move(state.tensors);
    }
  }
  void spread_inner() {
    const auto* const counts = steps.const_data_ptr<std::int64_t>();
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      inner_->set(parameters_[i].tensor, {counts[i], parameters_[i].state});
  }

  bool divided() const { return !node_.owner.empty(); }
  std::int64_t& step_count(const Segment& s) { return steps.mutable_data_ptr<std::int64_t>()[index(s)]; }
  std::size_t index(const Segment& s) const { return index_.at(s.parameter.unsafeGetTensorImpl()); }
  std::vector<double> values(std::size_t group) const {
    const auto* first = options[group].const_data_ptr<double>();
    return {first, first + options[group].numel()};
  }

  const bool values_;
  std::vector<Block>& blocks_;
  const std::vector<Block*> own_;
  const LocalNode& node_;
  Groups& groups_;
  const std::function<void(StateVisitor&)> visit_;  // the state of the scheme and the outer optimizer
  LossScale* const scale_;                          // null: losses are not scaled
  const std::span<const RuleStateName> state_names_;
  std::unique_ptr<TorchState> inner_;
  std::vector<Parameter> parameters_;                   // in the groups' order
  std::unordered_map<const void*, std::size_t> index_;  // of a parameter in parameters_
  std::vector<std::string> fields_;                     // of a parameter's state, with a point: "m."
  std::vector<SchemeValues> scheme_values_;
  std::vector<SchemeNumbers> scheme_numbers_;
};

}  // namespace

OptimizerState Optimizer::state(bool values, bool with_scheme) const {
  const c10::AutoGradMode no_gradient(false);
  // State reads the groups' options through references to non-const.
  auto& self = const_cast<Optimizer&>(*this);
  self.keep_states();
  auto& groups = engine_->inner ? engine_->inner->param_groups() : self.param_groups_;
  State state(*engine_, groups, values, with_scheme);
  if (!values) state.drop_values();
  OptimizerState all{
      .metadata = {{"format", kStateFormat}, {"rule", state.rule}, {"position", std::to_string(position())}},
      .tensors = {}};
  const Wire wire = engine_->options.wire;
  if (is_modular(wire) && !engine_->in_pairs()) all.metadata[grids_key(wire)] = grids_text(engine_->blocks);
  if (const std::string share = state.share(); share != kWholeShare) all.metadata["share"] = share;
  for (auto& [name, tensor] : state.all()) all.tensors.emplace(name, tensor);
  all.of_scheme = state.of_scheme();
  all.of_rule = state.of_rule();
  return all;
}

void Optimizer::take_state(const std::string& what, const std::function<GivenState()>& give) {
  const c10::AutoGradMode no_gradient(false);
  engine_->needs_own_parameters("a state is loaded");
  auto& groups = engine_->inner ? engine_->inner->param_groups() : param_groups_;
  State mine(*engine_, groups, /*values=*/false);
  GivenState given;
  std::int64_t position = 0;
  std::vector<int> grids;
  together(*this, what, [&] {
    given = give();
    if (given.state.scheme_anew) mine.drop_scheme();
    mine.make_as_in(given);
    const Named all = mine.all();
    check_tensors(given, mine.rule, mine.share(), all);
    position = position_in(given);
    grids = grids_in(given, engine_->options.wire);
    // The first tensors are the module's and the caller's own. They are copied only when every
    // worker has its state.
    for (std::size_t i = mine.model.size() + mine.guests.size(); i < all.size(); ++i)
      all[i].second.copy_(given.state.tensors.at(all[i].first));
    mine.check(given);
  });
  for (const auto& [name, tensor] : mine.model) tensor.copy_(given.state.tensors.at("model." + name));
  for (const auto& [name, tensor] : mine.guests) tensor.copy_(given.state.tensors.at(name));
  mine.apply();
  engine_->set_grids(grids);
  if (given.state.scheme_anew) renew_outer();
  go_on(static_cast<std::uint64_t>(position), [&](Scheme& scheme) {
    scheme.restart();
    if (!given.state.scheme_anew) mine.apply_to_scheme();
  });
}

// A newcomer takes all but the scheme's state, which begins anew on all workers, and torch's random
// numbers, which differ between them. The scheme is attached.
void Optimizer::adopt(OptimizerState given_state) {
  auto& groups = engine_->inner ? engine_->inner->param_groups() : param_groups_;
  State mine(*engine_, groups, /*values=*/false, /*with_scheme=*/false);
  const at::Tensor rng = mine.rng.clone();
  GivenState given{std::move(given_state), [](const std::string&, const std::string& why) {
                     throw UsageError("the state of another worker: " + why);
                   }};
  mine.make_as_in(given);
  const Named all = mine.all();
  engine_->to_come = take_others(given.state, all);
  check_tensors(given, mine.rule, mine.share(), all);
  for (const auto& [name, tensor] : all) tensor.copy_(given.state.tensors.at(name));
  mine.check(given);
  mine.rng.copy_(rng);
  mine.apply();
  mine.apply_to_scheme();  // to the outer optimizer alone
  engine_->scheme->restart();
}

}  // namespace starling
