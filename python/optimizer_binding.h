// starling::Optimizer and Consensus as Python's objects.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <torch/csrc/utils/pybind.h>

#include "python/options.h"
#include "python/process.h"
#include "starling/core/error.h"
#include "starling/optim/optimizer.h"
#include "starling/optim/torch_state.h"

namespace starling {

inline torch::optim::OptimizerParamGroup group_of(std::vector<at::Tensor> parameters, const Rule& rule) {
  return {std::move(parameters), rule_options(rule)};
}

// Learning rates and other options stay in Python.
struct NoOptions : torch::optim::OptimizerCloneableOptions<NoOptions> {};

// An optimizer written in Python, as the local rule. Its step() is called back. Python saves its
// state.
class PythonOptimizer final : public torch::optim::Optimizer, public SavedElsewhere {
 public:
  PythonOptimizer(const std::vector<std::vector<at::Tensor>>& groups, py::function step)
      : Optimizer(std::vector<torch::optim::OptimizerParamGroup>(groups.begin(), groups.end()),
                  std::make_unique<NoOptions>()),
        step_(std::move(step)) {}
  at::Tensor step(LossClosure) override {
    const py::gil_scoped_acquire lock;
    step_();
    return {};
  }

 private:
  py::function step_;
};

// starling::Optimizer, made for Python.
class OptimizerBinding {
 public:
  using Tensors = std::vector<at::Tensor>;
  // `groups`: the tensors in the place of the parameters in `param_groups`.
  OptimizerBinding(const std::string& rule, const py::list& param_groups, const std::vector<Tensors>& groups,
                   const py::dict& options, const World& world, const Tensors& buffers, const Tensors& frozen)
      : rule_(PythonRule(rule)) {
    std::vector<torch::optim::OptimizerParamGroup> all;
    for (std::size_t g = 0; g < groups.size(); ++g)
      all.push_back(group_of(groups[g], rule_->of(param_groups[g])));
    const Rule first = rule_->of(param_groups[0]);
    const Options parsed = options_of(options);
    take(param_groups);
    Interrupt::ends([&] {
      optimizer_ = Maker::keeps(std::make_shared<Optimizer>(all, first, parsed, world, buffers, frozen));
    });
  }
  OptimizerBinding(py::function step, const py::list& param_groups, const std::vector<Tensors>& groups,
                   const py::dict& options, const World& world, const Tensors& buffers, const Tensors& frozen)
      : inner_(std::make_unique<PythonOptimizer>(groups, std::move(step))) {
    const Options parsed = options_of(options);
    take(param_groups);
    Interrupt::ends([&] {
      optimizer_ = Maker::keeps(std::make_shared<Optimizer>(*inner_, parsed, world, buffers, frozen));
    });
  }

  // The caller holds on to it, because a signal's handler or another thread may close() in the
  // meantime.
  std::shared_ptr<Optimizer> optimizer() {
    if (!optimizer_) throw UsageError("the optimizer is closed");
    if (!maker_.is_this_process())
      throw UsageError("the optimizer is of the process that this one was forked from");
    return optimizer_;
  }
  // Ends its open scopes too: a scope in Python may live longer. If a call is in progress, the
  // optimizer is destroyed when that returns. `failed`: an error ends this worker.
  void close(bool failed) {
    std::shared_ptr<Optimizer> last = std::move(optimizer_);
    if (failed && last && maker_.is_this_process()) last->fails();
    const py::gil_scoped_release unlock;
    no_sync_.reset();
    for (const auto& open : averages_) {
      if (const auto average = open.lock()) average->reset();
    }
    averages_.clear();
    last.reset();
  }
  using Average = std::shared_ptr<Consensus>;
  void opened(const std::shared_ptr<Average>& average) {
    std::erase_if(averages_, [](const auto& open) { return open.expired(); });
    averages_.push_back(average);
  }
  // NoSync, from false to true.
  void set_sync(bool sync) {
    no_sync_.reset();
    if (!sync) no_sync_ = std::make_unique<NoSync>(*optimizer());
  }

  void add_group(Tensors parameters, const py::list& param_groups) {
    const py::dict group = param_groups[param_groups.size() - 1];
    if (rule_)
      optimizer()->add_param_group(group_of(std::move(parameters), rule_->of(group)));
    else
      inner_->add_param_group(torch::optim::OptimizerParamGroup(std::move(parameters)));
    take(param_groups);
  }
  void set_rules(const py::list& param_groups) {
    if (!rule_) return;
    auto& groups = optimizer()->param_groups();
    for (std::size_t g = 0; g < groups.size(); ++g) rule_->set(rule_of(groups[g]), param_groups[g]);
  }
  void step(const py::list& param_groups, std::optional<float> scale) {
    const auto it = optimizer();
    check_taken(param_groups);
    set_rules(param_groups);
    if (scale != 1) it->scale_gradients(scale);
    Interrupt::ends([&] { it->step(); });
  }
  // Calls load(optimizer). Returns whether `here` is true on any worker. `again`: it loads only if
  // so. This is one call, so that an interrupt leaves the workers at the same count of averages.
  template <class Load>
  bool loads(bool here, bool again, const Load& load) {
    const auto it = optimizer();
    std::int64_t any = here ? 1 : 0;
    Interrupt::ends([&] {
      if (!again) load(*it);
      it->maximum({&any, 1});
      if (again && any != 0) load(*it);
    });
    return any != 0;
  }

 private:
  // Remembers the parameters in torch's groups, which users may edit past add_param_group().
  void take(const py::list& param_groups) {
    taken_.clear();
    for (const py::handle group : param_groups) {
      auto& taken = taken_.emplace_back();
      for (const py::handle parameter : group["params"]) taken.push_back(parameter.ptr());
    }
  }
  void check_taken(const py::list& param_groups) const {
    for (std::size_t g = 0; g < std::max(taken_.size(), param_groups.size()); ++g) {
      const auto refuse = [&](const char* what) {
        throw UsageError(fmt::format(
            "param_groups was edited: parameter group {} {}; new parameters need add_param_group()", g,
            what));
      };
      if (g == taken_.size()) refuse("was added");
      if (g == param_groups.size()) refuse("is gone");
      const py::list now = param_groups[g]["params"];
      const auto same = [](py::handle p, PyObject* taken) { return p.ptr() == taken; };
      if (!std::equal(now.begin(), now.end(), taken_[g].begin(), taken_[g].end(), same))
        refuse("has other parameters");
    }
  }

  std::optional<PythonRule> rule_;          // one of
  std::unique_ptr<PythonOptimizer> inner_;  // these two
  std::shared_ptr<Optimizer> optimizer_;
  std::unique_ptr<NoSync> no_sync_;
  std::vector<std::weak_ptr<Average>> averages_;
  std::vector<std::vector<PyObject*>> taken_;
  const Maker maker_;
};

// Consensus, ended on Python's request.
class Scope {
 public:
  // `keep` must be the same on all workers, because keep() is collective.
  Scope(OptimizerBinding& binding, bool keep) {
    const auto optimizer = binding.optimizer();
    Interrupt::ends([&] {
      const Operation operation(*optimizer);
      optimizer->wait_for_all();
      std::int64_t wishes[]{keep ? 1 : 0, keep ? 0 : 1};
      optimizer->maximum(wishes);
      if (wishes[0] + wishes[1] == 2)
        throw UsageError("consensus(): keep differs between workers; it must be the same on all");
      *average_ = Maker::keeps(std::make_shared<Consensus>(*optimizer));
      workers = (*average_)->workers();
      first = (*average_)->first();
      distance = (*average_)->distance();
    });
    try {
      binding.optimizer();
    } catch (const UsageError&) {  // closed in the meantime
      average_->reset();
      throw;
    }
    binding.opened(average_);
  }
  void end(bool keep) {
    if (*average_ && keep) Interrupt::ends([&] { (*average_)->keep(); });
    const py::gil_scoped_release unlock;
    average_->reset();
  }
  int workers, first;
  double distance;

 private:
  // Empty once it has ended.
  std::shared_ptr<OptimizerBinding::Average> average_ = std::make_shared<OptimizerBinding::Average>();
};

}  // namespace starling
