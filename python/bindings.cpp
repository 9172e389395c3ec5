// The extension starling._C registers the C++ interface for python/starling/, which turns it into
// Python's idioms, and does nothing else. Every call that may wait runs without the interpreter's
// lock.
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/csrc/utils/pybind.h>

#include "python/optimizer_binding.h"
#include "python/options.h"
#include "python/process.h"
#include "starling/core/error.h"
#include "starling/core/text.h"
#include "starling/optim/agreement.h"
#include "starling/optim/checkpoint.h"
#include "starling/optim/optimizer.h"

namespace starling {
namespace {

using Tensors = std::vector<at::Tensor>;

// By name "zero" or "parameter"; for numbers the fresh ones.
py::dict scheme_state(const OptimizerState& state) {
  py::dict all;
  for (const SchemeState& field : state.of_scheme) {
    const py::str name(field.name);
    if (field.numbers) {
      all[name] = *field.numbers;
    } else {
      all[name] = field.fresh == Fresh::zero ? "zero" : "parameter";
    }
  }
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
  all["skipped_rounds"] = s.skipped_rounds;
  all["round"] = s.round;
  all["membership"] = s.membership;
  all["joins"] = s.joins;
  all["committed"] = s.committed;
  all["aborted"] = s.aborted;
  all["jumped"] = s.jumped;
  all["late"] = s.late;
  all["bytes_sent"] = s.bytes_sent;
  all["payload_sent"] = s.payload_sent;
  all["bytes_in_place"] = s.bytes_in_place;
  all["directed_aborted"] = s.directed_aborted;
  all["seconds_waiting"] = s.seconds_waiting;
  all["skipped"] = s.skipped;
  all["lost"] = s.lost;
  all["mixed"] = s.mixed;
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
    timeouts.meet = milliseconds_of("timeout", meet);
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
      .def_readonly("_rejoin", &World::rejoin)
      .def_property_readonly("_optimizers", [](const World& world) { return world.optimizers->load(); })
      .def(
          "_set_stored",
          [](const World& world, const std::string& key, const std::string& value) {
            world.store->set(key, value);
          },
          py::call_guard<py::gil_scoped_release>())
      .def("_stored", &stored_value, py::call_guard<py::gil_scoped_release>());

  py::class_<OptimizerBinding>(m, "OptimizerBinding")
      .def(py::init<const std::string&, const py::list&, const std::vector<Tensors>&, const py::dict&,
                    const World&, const Tensors&, const Tensors&>())
      .def(py::init<py::function, const py::list&, const std::vector<Tensors>&, const py::dict&, const World&,
                    const Tensors&, const Tensors&>())
      .def("close", &OptimizerBinding::close)
      .def("set_sync", &OptimizerBinding::set_sync)
      .def("add_group", &OptimizerBinding::add_group)
      .def("set_rules", &OptimizerBinding::set_rules)
      .def("step", &OptimizerBinding::step)
      .def("set_buffers", [](OptimizerBinding& binding,
                             Tensors buffers) { binding.optimizer()->set_buffers(std::move(buffers)); })
      .def(
          "state",
          [](OptimizerBinding& binding, bool values) {
            const auto optimizer = binding.optimizer();
            OptimizerState state;
            Interrupt::ends([&] { state = optimizer->state(values); });
            return std::tuple(state.tensors, state.metadata, scheme_state(state));
          },
          py::arg("values") = true)
      .def(
          "set_state",
          [](OptimizerBinding& binding, std::map<std::string, at::Tensor> tensors, Metadata metadata,
             bool here, bool again) {
            const OptimizerState state{std::move(metadata), std::move(tensors)};
            return binding.loads(here, again, [&](Optimizer& optimizer) { optimizer.set_state(state); });
          },
          py::arg("tensors"), py::arg("metadata"), py::arg("here") = false, py::arg("again") = false)
      .def("begin_again",
           [](OptimizerBinding& binding) {
             const auto optimizer = binding.optimizer();
             Interrupt::ends([&] { optimizer->begin_again(); });
           })
      .def_property_readonly("steps", [](OptimizerBinding& binding) { return binding.optimizer()->steps(); })
      .def_property_readonly("joined",
                             [](OptimizerBinding& binding) { return binding.optimizer()->joined(); })
      .def("statistics", &statistics_of);

  py::class_<Scope>(
      m, "Scope", "What Optimizer.consensus() yields: the average of the workers' models, while it is there.")
      .def(py::init<OptimizerBinding&, bool>())
      .def("end", &Scope::end, "Called where consensus() ends.")
      .def_readonly("workers", &Scope::workers, "How many took part.")
      .def_readonly("first", &Scope::first, "The lowest of their ranks.")
      .def_readonly("distance", &Scope::distance, "RMS distance of their parameters to the average.");

  m.def("average", &average_of);
  m.def("checksum", py::overload_cast<const std::vector<at::Tensor>&>(&checksum_of),
        py::call_guard<py::gil_scoped_release>());
  m.def("scheme_traits", &scheme_traits);
  m.def("default_scheme", [] { return SchemeChoice().name; });
  m.def("rules", &rules);
  m.def("nearest_name", [](const std::string& name, const std::vector<std::string>& names) {
    return nearest_name(name, names);
  });
  m.def(
      "save_tensors",
      [](const std::string& file, const std::map<std::string, at::Tensor>& tensors,
         const Metadata& metadata) { save_tensors(file, tensors, metadata); },
      py::call_guard<py::gil_scoped_release>());
}

}  // namespace
}  // namespace starling
