#include "starling/optim/torch_state.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>
#include <typeinfo>

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "starling/core/error.h"

namespace starling {
namespace {

// Describes each class:
//   each_option(options, f)  calls f(option); files depend on the order
//   fields, tensors(state)   the tensors of a parameter's state
//   needed(options)          per field, whether step() relies on it if any state exists
//   kFromTheStart            a parameter has state from construction on

struct Sgd {
  using Optimizer = torch::optim::SGD;
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;
  static constexpr const char* kName = "torch::optim::SGD";
  static constexpr std::array kFields{"momentum_buffer"};
  static constexpr bool kFromTheStart = false;
  template <class F>
  static void each_option(Options& o, const F& f) {
    f(o.lr()), f(o.momentum()), f(o.dampening()), f(o.weight_decay()), f(o.nesterov());
  }
  static std::array<at::Tensor*, 1> tensors(State& s) { return {&s.momentum_buffer()}; }
  static std::array<bool, 1> needed(const Options&) { return {true}; }
};

template <class TheOptimizer, class TheOptions, class TheState>
struct AnyAdam {
  using Optimizer = TheOptimizer;
  using Options = TheOptions;
  using State = TheState;
  static constexpr std::array kFields{"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  static constexpr bool kFromTheStart = false;
  template <class F>
  static void each_option(Options& o, const F& f) {
    f(o.lr()), f(std::get<0>(o.betas())), f(std::get<1>(o.betas())), f(o.eps()), f(o.weight_decay()),
        f(o.amsgrad());
  }
  static std::array<at::Tensor*, 3> tensors(State& s) {
    return {&s.exp_avg(), &s.exp_avg_sq(), &s.max_exp_avg_sq()};
  }
  static std::array<bool, 3> needed(const Options& o) { return {true, true, o.amsgrad()}; }
};

struct PlainAdam : AnyAdam<torch::optim::Adam, torch::optim::AdamOptions, torch::optim::AdamParamState> {
  static constexpr const char* kName = "torch::optim::Adam";
};

struct DecoupledAdam
    : AnyAdam<torch::optim::AdamW, torch::optim::AdamWOptions, torch::optim::AdamWParamState> {
  static constexpr const char* kName = "torch::optim::AdamW";
};

struct Adagrad {
  using Optimizer = torch::optim::Adagrad;
  using Options = torch::optim::AdagradOptions;
  using State = torch::optim::AdagradParamState;
  static constexpr const char* kName = "torch::optim::Adagrad";
  static constexpr std::array kFields{"sum"};
  static constexpr bool kFromTheStart = true;
  template <class F>
  static void each_option(Options& o, const F& f) {
    f(o.lr()), f(o.lr_decay()), f(o.weight_decay()), f(o.initial_accumulator_value()), f(o.eps());
  }
  static std::array<at::Tensor*, 1> tensors(State& s) { return {&s.sum()}; }
  static std::array<bool, 1> needed(const Options&) { return {true}; }
};

struct RmsProp {
  using Optimizer = torch::optim::RMSprop;
  using Options = torch::optim::RMSpropOptions;
  using State = torch::optim::RMSpropParamState;
  static constexpr const char* kName = "torch::optim::RMSprop";
  static constexpr std::array kFields{"square_avg", "momentum_buffer", "grad_avg"};
  static constexpr bool kFromTheStart = false;
  template <class F>
  static void each_option(Options& o, const F& f) {
    f(o.lr()), f(o.alpha()), f(o.eps()), f(o.weight_decay()), f(o.momentum()), f(o.centered());
  }
  static std::array<at::Tensor*, 3> tensors(State& s) {
    return {&s.square_avg(), &s.momentum_buffer(), &s.grad_avg()};
  }
  static std::array<bool, 3> needed(const Options& o) { return {true, o.momentum() > 0, o.centered()}; }
};

template <class Kind>
class Typed final : public TorchState {
 public:
  explicit Typed(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {}

  std::string name() const override { return Kind::kName; }
  std::vector<std::string> fields() const override { return {Kind::kFields.begin(), Kind::kFields.end()}; }

  Fields get(const at::Tensor& parameter, const std::string& parameter_name) const override {
    Fields fields{0, std::vector<at::Tensor>(Kind::kFields.size())};
    const auto found = optimizer_.state().find(parameter.unsafeGetTensorImpl());
    if (found == optimizer_.state().end()) return fields;
    auto& state = static_cast<typename Kind::State&>(*found->second);
    if constexpr (requires { state.step(); }) fields.steps = state.step();
    const auto tensors = Kind::tensors(state);
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      fields.tensors[k] = *tensors[k];
      if (!tensors[k]->defined()) continue;
      if (tensors[k]->is_sparse() || tensors[k]->scalar_type() != at::kFloat)
        throw UsageError(fmt::format("{} of parameter {} in {} is not dense float32: that cannot be saved",
                                     Kind::kFields[k], parameter_name, Kind::kName));
    }
    return fields;
  }

  void set(const at::Tensor& parameter, const Fields& fields) override {
    void* const key = parameter.unsafeGetTensorImpl();
    if (std::ranges::none_of(fields.tensors, &at::Tensor::defined)) {
      optimizer_.state().erase(key);
      return;
    }
    auto state = std::make_unique<typename Kind::State>();
    if constexpr (requires { state->step(); }) state->step(fields.steps);
    const auto tensors = Kind::tensors(*state);
    for (std::size_t k = 0; k < tensors.size(); ++k) *tensors[k] = fields.tensors[k];
    optimizer_.state()[key] = std::move(state);
  }

  std::vector<double> values(std::size_t group) const override {
    std::vector<double> values;
    Kind::each_option(options(group), [&](auto& option) { values.push_back(static_cast<double>(option)); });
    return values;
  }

  void set_values(std::size_t group, const std::vector<double>& values) override {
    options(group) = made_of(values);
  }

  void check_values(const std::vector<double>& values) const override {
    std::size_t k = 0;
    typename Kind::Options probe{0.0};
    Kind::each_option(probe, [&](auto& option) {
      const double value = values[k++];
      const bool flag = std::is_same_v<std::remove_reference_t<decltype(option)>, bool>;
      if (flag ? value == 0 || value == 1 : std::isfinite(value)) return;
      throw UsageError(fmt::format("{}: option {} = {} is not allowed: it must be {}", Kind::kName, k, value,
                                   flag ? "0 or 1" : "finite"));
    });
    try {
      const typename Kind::Optimizer strict({at::zeros({1})}, made_of(values));
    } catch (const c10::Error& error) {
      throw UsageError(fmt::format("{}: {}", Kind::kName, error.msg()));
    }
  }

  std::string lacks(const Fields& fields, const std::vector<double>& values) const override {
    const auto needed = Kind::needed(made_of(values));
    if (!Kind::kFromTheStart && std::ranges::none_of(fields.tensors, &at::Tensor::defined)) return "";
    for (std::size_t k = 0; k < needed.size(); ++k) {
      if (needed[k] && !fields.tensors[k].defined()) return Kind::kFields[k];
    }
    return "";
  }

 private:
  static typename Kind::Options made_of(const std::vector<double>& values) {
    std::size_t k = 0;
    typename Kind::Options options{0.0};  // the learning rate, the first value
    Kind::each_option(options, [&](auto& option) {
      option = static_cast<std::remove_reference_t<decltype(option)>>(values[k++]);
    });
    return options;
  }
  typename Kind::Options& options(std::size_t group) const {
    return static_cast<typename Kind::Options&>(optimizer_.param_groups()[group].options());
  }
  torch::optim::Optimizer& optimizer_;
};

// Nothing: no fields and no options.
class Elsewhere final : public TorchState {
 public:
  std::string name() const override { return "another optimizer"; }
  std::vector<std::string> fields() const override { return {}; }
  Fields get(const at::Tensor&, const std::string&) const override { return {}; }
  void set(const at::Tensor&, const Fields&) override {}
  std::vector<double> values(std::size_t) const override { return {}; }
  void set_values(std::size_t, const std::vector<double>&) override {}
  void check_values(const std::vector<double>&) const override {}
  std::string lacks(const Fields&, const std::vector<double>&) const override { return ""; }
};

}  // namespace

std::unique_ptr<TorchState> TorchState::of(torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const SavedElsewhere*>(&optimizer) != nullptr) return std::make_unique<Elsewhere>();
  std::unique_ptr<TorchState> state;
  const auto try_kind = [&]<class Kind>(Kind) {
    if (typeid(optimizer) == typeid(typename Kind::Optimizer))
      state = std::make_unique<Typed<Kind>>(optimizer);
  };
  try_kind(Sgd{}), try_kind(PlainAdam{}), try_kind(DecoupledAdam{}), try_kind(Adagrad{}), try_kind(RmsProp{});
  if (state) return state;
  throw UsageError(
      "the optimizer that is stepped around is none of torch::optim's SGD, Adam, AdamW, Adagrad and RMSprop: "
      "what else it keeps is not known, so it cannot be saved or loaded");
}

}  // namespace starling
