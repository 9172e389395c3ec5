// Workers as threads, and the task that they learn. Includes the headers that most tests of this
// folder need.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <torch/nn/module.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "starling/optim/optimizer.h"
#include "starling/world/world.h"
#include "tests/folder.h"
#include "tests/log_lines.h"
#include "tests/refusal.h"
#include "tests/threads.h"

namespace starling {

// f(worker, world) on n threads. After all have ended, throws the exception of the first worker
// that has one.
inline void flock(int n, const std::function<void(int, World&)>& f) {
  std::vector<World> worlds = World::threads(n);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(n));
  on_threads(n, [&](int i) {
    try {
      f(i, worlds[static_cast<std::size_t>(i)]);
    } catch (...) {
      errors[static_cast<std::size_t>(i)] = std::current_exception();
    }
  });
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

// The results of f(worker, world), by worker.
template <class F>
auto results_of(int n, F&& f) {
  std::vector<std::invoke_result_t<F, int, World&>> all(static_cast<std::size_t>(n));
  flock(n, [&](int i, World& world) { all[static_cast<std::size_t>(i)] = f(i, world); });
  return all;
}

// Blocks until all workers have come here, so that none leaves while others need it.
inline void nobody_leaves_yet(Optimizer& optimizer) {
  std::int64_t nothing = 0;
  optimizer.wait_for_all();
  optimizer.maximum({&nothing, 1});
}

// The same, and no exchange was lost.
inline void expect_undisturbed(Optimizer& optimizer) {
  EXPECT_EQ(optimizer.statistics().aborted, 0U);
  nobody_leaves_yet(optimizer);
}

constexpr int kWorkers = 3;  // the default of these tests

inline at::Tensor parameter(at::IntArrayRef sizes, double value = 0, at::ScalarType type = at::kFloat) {
  return at::full(sizes, value, type).set_requires_grad(true);
}

inline bool is_all(const at::Tensor& tensor, double value) {
  return at::allclose(tensor.detach(), at::full_like(tensor.detach(), value), 1e-5, 1e-6);
}

// Worker i at step t descends 1/2 |x - centre|^2, whose gradient is x - centre. The centres move.
inline double centre(int i, int t) { return std::sin(1.0 + i + 0.3 * t); }

// Steps from .. to-1 of worker i towards its centres.
inline void train(const std::vector<at::Tensor>& parameters, Optimizer& optimizer, int i, int from, int to) {
  for (int t = from; t < to; ++t) {
    for (const at::Tensor& p : parameters) p.mutable_grad() = p.detach() - centre(i, t);
    optimizer.step();
  }
}

// A state that later steps do not change.
inline OptimizerState copy_of(OptimizerState state) {
  for (auto& [name, tensor] : state.tensors) tensor = tensor.detach().clone();
  return state;
}

// A file of a topology. It is removed with this object.
class TopologyFile {
 public:
  explicit TopologyFile(const std::string& text) { spill(path(), text); }
  std::string path() const { return folder_ / "topology.toml"; }

 private:
  const Folder folder_;
};

}  // namespace starling
