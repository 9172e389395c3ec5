// The extension starling._C registers the C++ interface for python/starling/, which turns it into
// Python's idioms, and does nothing else. Every call that may wait runs without the interpreter's
// lock.
#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include "starling/core/config.h"
#include "starling/core/error.h"
#include "starling/kernels/wire.h"
#include "starling/optim/checkpoint.h"
#include "starling/optim/optimizer.h"
#include "starling/optim/rule_step.h"
#include "starling/optim/schemes/table.h"

namespace py = pybind11;

namespace starling {
namespace {

using Seconds = std::chrono::duration<double>;

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Seconds(seconds));
}

// Objects with threads and connections belong to the process that made them. A forked process has
// neither the threads, to wait for, nor the right to use the connections. There the objects are
// left as they are, and never destroyed.
class Maker {
 public:
  bool is_this_process() const { return process_ == getpid(); }
  template <class T>
  static std::shared_ptr<T> keeps(std::shared_ptr<T> it) {
    T* const there = it.get();
    return {there, [maker = Maker(), it = std::move(it)](T*) mutable {
              if (!maker.is_this_process()) new std::shared_ptr<T>(std::move(it));
            }};
  }

 private:
  pid_t process_ = getpid();
};

// A rule whose options are in the parameter groups of Python's optimizer.
class PythonRule {
 public:
  explicit PythonRule(const std::string& name) : defaults_(rule_named(name)) {
    each_option(defaults_, [&](const RuleOption& option, const auto&) {
      const std::string key(option.name);
      keys_.push_back(py::reinterpret_steal<py::str>(PyUnicode_InternFromString(key.c_str())));
    });
  }
  Rule of(const py::dict& group) const {
    Rule rule = defaults_;
    set(rule, group);
    return rule;
  }
  // An option in a group is a number, a tensor of one number, or several of these.
  void set(Rule& rule, const py::dict& group) const {
    std::vector<double> values;
    for (const py::str& key : keys_) {
      const py::object value = group[key];
      if (py::isinstance<py::tuple>(value) || py::isinstance<py::list>(value)) {
        for (const py::handle each : value) values.push_back(number(each));
      } else {
        values.push_back(number(value));
      }
    }
    set_rule_values(rule, values);
  }

 private:
  static double number(py::handle value) {
    const double number = PyFloat_AsDouble(value.ptr());
    if (number == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    return number;
  }
  static Rule rule_named(const std::string& name) {
    for (const Rule& rule : known_rules()) {
      if (rule_name(rule) == name) return rule;
    }
    throw UsageError(fmt::format("rule \"{}\" is unknown", name));
  }
  Rule defaults_;
  std::vector<py::str> keys_;  // of the groups, in the order of rule_values()
};

// By the rules' names: {"options": {name: default}, "states": {name in files: torch's name}}.
py::dict rules() {
  py::dict all;
  for (const Rule& rule : known_rules()) {
    py::dict options, states;
    each_option(rule, [&](const RuleOption& option, const auto& value) {
      options[py::str(std::string(option.name))] = py::cast(value);
    });
    for (const RuleStateName& state : rule_state_names(rule))
      states[py::str(std::string(state.name))] = std::string(state.torch);
    py::dict one;
    one["options"] = options;
    one["states"] = states;
    all[py::str(rule_name(rule))] = one;
  }
  return all;
}

torch::optim::OptimizerParamGroup group_of(std::vector<at::Tensor> parameters, const Rule& rule) {
  return {std::move(parameters), rule_options(rule)};
}

// Converts to the option's type.
SchemeValue scheme_value(const SchemeOption& option, py::handle value) {
  const std::optional<SchemeValue> standard = default_of(option);
  if (!standard || std::holds_alternative<double>(*standard)) return value.cast<double>();
  if (std::holds_alternative<std::int64_t>(*standard)) return value.cast<std::int64_t>();
  return value.cast<std::string>();
}

Options options_of(const py::dict& given) {
  using Set = void (*)(Options&, py::handle);
  static const std::map<std::string, Set> setters{
      {"topology", [](Options& o, py::handle v) { o.topology = v.cast<std::string>(); }},
      {"scheme", [](Options& o, py::handle v) { o.scheme.name = v.cast<std::string>(); }},
      {"wire", [](Options& o, py::handle v) { o.wire = wire_named(v.cast<std::string>()); }},
      {"one_in", [](Options& o, py::handle v) { o.one_in = v.cast<int>(); }},
      {"seed", [](Options& o, py::handle v) { o.seed = v.cast<std::uint64_t>(); }},
      {"hierarchy", [](Options& o, py::handle v) { o.hierarchy = v.cast<std::string>(); }},
      {"workers_per_node", [](Options& o, py::handle v) { o.workers_per_node = v.cast<int>(); }},
      {"block_bytes", [](Options& o, py::handle v) { o.block_bytes = v.cast<std::int64_t>(); }},
      {"max_wait",
       [](Options& o, py::handle v) {
         if (!v.is_none()) o.max_wait = milliseconds_of(v.cast<double>());
       }},
      {"clip", [](Options& o, py::handle v) { o.clip = v.cast<double>(); }},
      {"skip_not_finite", [](Options& o, py::handle v) { o.skip_not_finite = v.cast<bool>(); }},
      {"clear_gradients", [](Options& o, py::handle v) { o.clear_gradients = v.cast<bool>(); }}};
  const std::vector<SharedOption> of_schemes = scheme_options();
  Options options;
  for (const auto& [name, value] : given) {
    const auto key = name.cast<std::string>();
    const auto setter = setters.find(key);
    const auto of_scheme = std::ranges::find(of_schemes, key, [](const auto& o) { return o.option->name; });
    if (setter == setters.end() && of_scheme == of_schemes.end()) {
      std::vector<std::string> known{"buffers", "check_gradients", "process_group", "world"};
      for (const auto& [other, set] : setters) known.push_back(other);
      for (const SharedOption& other : of_schemes) known.emplace_back(other.option->name);
      std::ranges::sort(known);
      const std::string nearest = nearest_name(key, known);
      throw py::type_error(fmt::format(
          "unexpected keyword argument '{}'{}: beside the rule's there are {}", key,
          nearest.empty() ? "" : fmt::format(", did you mean '{}'?", nearest), fmt::join(known, ", ")));
    }
    try {
      if (of_scheme == of_schemes.end()) {
        setter->second(options, value);
      } else if (!(value.is_none() && of_scheme->option->is_automatic())) {
        options.scheme.options.emplace_back(key, scheme_value(*of_scheme->option, value));
      }
    } catch (const py::cast_error&) {
      throw py::type_error(fmt::format("keyword argument '{}': {} has the wrong type", key,
                                       py::repr(value).cast<std::string>()));
    }
  }
  return options;
}

// Learning rates and other options stay in Python.
struct NoOptions : torch::optim::OptimizerCloneableOptions<NoOptions> {};

// An optimizer written in Python, as the local rule. Its step() is called back.
class PythonOptimizer final : public torch::optim::Optimizer {
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

// Ctrl-C while C++ waits: the signal's handler is called in the middle of the wait, as Python calls
// it between two lines. Its exception ends the wait, and is raised once the call has ended.
class Interrupt {
 public:
  // World::interrupted, in the thread that waits: Python calls handlers in its main thread only.
  // Outside ends() it throws the raised exception. This happens in backward(), where all-reduce
  // waits, and autograd passes it to its caller.
  static bool came() {
    if (raised_) return true;
    const py::gil_scoped_acquire lock;
    if (PyErr_CheckSignals() == 0) return false;
    if (!listens_) throw py::error_already_set();
    raised_.emplace();
    return true;
  }
  // Runs a call that may wait, without the interpreter's lock.
  template <class Call>
  static void ends(const Call& call) {
    std::exception_ptr failure;
    const bool before = std::exchange(listens_, true);  // a call within a call: Python's hooks
    {
      const py::gil_scoped_release unlock;
      try {
        call();
      } catch (...) {
        failure = std::current_exception();
      }
    }
    listens_ = before;
    if (!before) {
      // Perhaps the reason of the failure.
      if (auto raised = std::exchange(raised_, std::nullopt)) throw *raised;
    }
    if (failure) std::rethrow_exception(failure);
  }

 private:
  static thread_local bool listens_;
  static thread_local std::optional<py::error_already_set> raised_;
};
thread_local bool Interrupt::listens_ = false;
thread_local std::optional<py::error_already_set> Interrupt::raised_;

// starling::Optimizer, as Python holds it.
class OptimizerBinding {
 public:
  OptimizerBinding(const std::string& rule, const py::list& param_groups,
                   const std::vector<std::vector<at::Tensor>>& groups, const py::dict& options,
                   const World& world, std::vector<at::Tensor> buffers)
      : rule_(PythonRule(rule)) {
    std::vector<torch::optim::OptimizerParamGroup> all;
    for (std::size_t g = 0; g < groups.size(); ++g)
      all.push_back(group_of(groups[g], rule_->of(param_groups[g])));
    const Rule first = rule_->of(param_groups[0]);
    const Options parsed = options_of(options);
    Interrupt::ends([&] {
      optimizer_ = Maker::keeps(std::make_shared<Optimizer>(all, first, parsed, world, std::move(buffers)));
    });
  }
  OptimizerBinding(py::function step, const std::vector<std::vector<at::Tensor>>& groups,
                   const py::dict& options, const World& world, std::vector<at::Tensor> buffers)
      : inner_(std::make_unique<PythonOptimizer>(groups, std::move(step))) {
    const Options parsed = options_of(options);
    Interrupt::ends([&] {
      optimizer_ = Maker::keeps(std::make_shared<Optimizer>(*inner_, parsed, world, std::move(buffers)));
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
  // optimizer is destroyed when that returns.
  void close() {
    std::shared_ptr<Optimizer> last = std::move(optimizer_);
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

  void add_group(std::vector<at::Tensor> parameters, const py::dict& group) {
    if (rule_)
      optimizer()->add_param_group(group_of(std::move(parameters), rule_->of(group)));
    else
      inner_->add_param_group(torch::optim::OptimizerParamGroup(std::move(parameters)));
  }
  void set_rules(const py::list& param_groups) {
    if (!rule_) return;
    auto& groups = optimizer()->param_groups();
    for (std::size_t g = 0; g < groups.size(); ++g) rule_->set(rule_of(groups[g]), param_groups[g]);
  }
  void step(const py::list& param_groups, std::optional<float> scale) {
    const auto it = optimizer();
    set_rules(param_groups);
    if (scale != 1) it->scale_gradients(scale);
    Interrupt::ends([&] { it->step(); });
  }

 private:
  std::optional<PythonRule> rule_;          // one of
  std::unique_ptr<PythonOptimizer> inner_;  // these two
  std::shared_ptr<Optimizer> optimizer_;
  std::unique_ptr<NoSync> no_sync_;
  std::vector<std::weak_ptr<Average>> averages_;
  const Maker maker_;
};

// Consensus, ended on Python's request.
class Scope {
 public:
  explicit Scope(OptimizerBinding& binding) {
    const auto optimizer = binding.optimizer();
    Interrupt::ends([&] {
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
    const py::gil_scoped_release unlock;
    if (*average_ && keep) (*average_)->keep();
    average_->reset();
  }
  int workers, first;
  double distance;

 private:
  // Empty once it has ended.
  std::shared_ptr<OptimizerBinding::Average> average_ = std::make_shared<OptimizerBinding::Average>();
};

// By name "zero", "parameter" or "kept"; for numbers the fresh ones.
py::dict scheme_state(const OptimizerState& state) {
  py::dict all;
  for (const SchemeState& field : state.of_scheme) {
    const py::str name(field.name);
    if (field.numbers) {
      all[name] = *field.numbers;
    } else {
      all[name] = field.fresh == Fresh::zero        ? "zero"
                  : field.fresh == Fresh::parameter ? "parameter"
                                                    : "kept";
    }
  }
  return all;
}

// The traits of a scheme that Python needs before there is an optimizer.
py::dict scheme_traits(const std::string& name) {
  const SchemeTraits& traits = scheme_info(name).traits;
  py::dict all;
  all["averages_gradients"] = traits.path == Path::gradients;
  all["sums_gradients"] = traits.sums_gradients;
  return all;
}

int average_of(const std::vector<at::Tensor>& tensors, const World& world) {
  int workers = 0;
  Interrupt::ends([&] { workers = average(tensors, world); });
  return workers;
}

py::dict statistics_of(OptimizerBinding& binding) {
  const Statistics s = binding.optimizer()->statistics();
  py::dict all;
  all["rounds"] = s.rounds;
  all["committed"] = s.committed;
  all["aborted"] = s.aborted;
  all["late"] = s.late;
  all["bytes_sent"] = s.bytes_sent;
  all["bytes_in_place"] = s.bytes_in_place;
  all["directed_aborted"] = s.directed_aborted;
  all["seconds_waiting"] = s.seconds_waiting;
  all["skipped"] = s.skipped;
  all["lost"] = s.lost;
  py::list edges;
  for (const Statistics::Edge& e : s.edges) {
    py::dict edge;
    edge["rank"] = e.rank;
    edge["averaged"] = e.averaged;
    edge["gap"] = e.gap;
    edge["longest_gap"] = e.longest_gap;
    edge["distance"] = e.distance;
    edges.append(edge);
  }
  all["edges"] = edges;
  py::dict questions;
  questions["asked"] = s.questions.asked;
  questions["refused"] = s.questions.refused;
  questions["unanswered"] = s.questions.unanswered;
  questions["dropped"] = s.questions.dropped;
  all["questions"] = questions;
  all["gradients_of_all"] = s.gradients_of_all;
  all["rate"] = s.rate;
  all["distance"] = s.distance;
  return all;
}

// A world whose messages go to stderr.
template <class Make>
World make_world(double meet, const Make& make) {
  World world;
  Interrupt::ends([&] {
    Timeouts timeouts;
    timeouts.meet = milliseconds_of(meet);
    world = make(timeouts, &Interrupt::came);
    world.store = Maker::keeps(std::move(world.store));
    world.log = log_to_stderr(world.rank);
  });
  return world;
}
World from_environment(double meet) { return make_world(meet, &World::from_environment); }
World from_process_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group, double meet) {
  return make_world(meet, [&](Timeouts timeouts, const Interrupted& interrupted) {
    return World::from_process_group(*group, timeouts, interrupted);
  });
}

// The value that a worker has set for the key; nothing if none has so far, or if the store is gone.
std::optional<std::string> stored_value(const World& world, const std::string& key) {
  try {
    return world.store->get(key, std::chrono::milliseconds(0));
  } catch (const Error&) {
    return std::nullopt;
  }
}

PYBIND11_MODULE(_C, m) {
  m.doc() = "Starling's C++ library; use the package starling.";
  const auto error = py::register_exception<Error>(m, "Error", PyExc_RuntimeError);
  // Translators are asked in reverse order, so the narrower one is registered last.
  const auto usage_error = py::register_exception<UsageError>(
      m, "UsageError", py::make_tuple(error, py::handle(PyExc_ValueError)));
  error.attr("__doc__") = "What happened, in one line: where (rank, file, peer), and what is allowed.";
  usage_error.attr("__doc__") = "What the caller asked for is not possible, for the reason that it says.";

  py::class_<World>(m, "World", "The workers of one run, as one of them sees them; made by starling.init().")
      .def_static("from_environment", &from_environment, py::arg("meet"))
      .def_static("from_process_group", &from_process_group, py::arg("group"), py::arg("meet"))
      .def_readonly("rank", &World::rank, "Of this worker.")
      .def_readonly("size", &World::size, "How many workers there are.")
      .def_readonly("local_rank", &World::local_rank, "Among the workers of this node.")
      .def_readonly("local_size", &World::local_size, "Workers on this node.")
      .def_property_readonly("_optimizers", [](const World& world) { return world.optimizers->load(); })
      .def(
          "_set_stored",
          [](const World& world, const std::string& key, const std::string& value) {
            world.store->set(key, value);
          },
          py::call_guard<py::gil_scoped_release>())
      .def("_stored", &stored_value, py::call_guard<py::gil_scoped_release>());

  py::class_<OptimizerBinding>(m, "OptimizerBinding")
      .def(py::init<const std::string&, const py::list&, const std::vector<std::vector<at::Tensor>>&,
                    const py::dict&, const World&, std::vector<at::Tensor>>())
      .def(py::init<py::function, const std::vector<std::vector<at::Tensor>>&, const py::dict&, const World&,
                    std::vector<at::Tensor>>())
      .def("close", &OptimizerBinding::close)
      .def("set_sync", &OptimizerBinding::set_sync)
      .def("add_group", &OptimizerBinding::add_group)
      .def("set_rules", &OptimizerBinding::set_rules)
      .def("step", &OptimizerBinding::step)
      .def(
          "state",
          [](OptimizerBinding& binding, bool values) {
            const auto optimizer = binding.optimizer();
            OptimizerState state;
            Interrupt::ends([&] { state = optimizer->state(values); });
            return std::tuple(state.tensors, state.metadata, scheme_state(state));
          },
          py::arg("values") = true)
      .def("set_state",
           [](OptimizerBinding& binding, std::map<std::string, at::Tensor> tensors, Metadata metadata) {
             const auto optimizer = binding.optimizer();
             Interrupt::ends([&] { optimizer->set_state({std::move(metadata), std::move(tensors)}); });
           })
      .def("position", [](OptimizerBinding& binding) { return binding.optimizer()->position(); })
      .def("restart",
           [](OptimizerBinding& binding, std::optional<std::uint64_t> position) {
             const auto optimizer = binding.optimizer();
             Interrupt::ends([&] { optimizer->restart(position); });
           })
      .def("statistics", &statistics_of);

  py::class_<Scope>(
      m, "Scope", "What Optimizer.consensus() yields: the average of the workers' models, while it is there.")
      .def(py::init<OptimizerBinding&>())
      .def("end", &Scope::end, "Called where consensus() ends.")
      .def_readonly("workers", &Scope::workers, "How many took part.")
      .def_readonly("first", &Scope::first, "The lowest of their ranks.")
      .def_readonly("distance", &Scope::distance, "RMS distance of their parameters to the average.");

  m.def("average", &average_of);
  m.def("scheme_traits", &scheme_traits);
  m.def("default_scheme", [] { return SchemeChoice().name; });
  m.def("rules", &rules);
  m.def(
      "save_tensors",
      [](const std::string& file, const std::map<std::string, at::Tensor>& tensors,
         const Metadata& metadata) { save_tensors(file, tensors, metadata); },
      py::call_guard<py::gil_scoped_release>());
}

}  // namespace
}  // namespace starling
