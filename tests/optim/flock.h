// Workers as threads, and what they learn.
#pragma once

#include <cmath>
#include <cstddef>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>

#include "starling/world/world.h"

namespace starling {

// f(worker, world) on n threads. The exception of the first worker that has one is thrown here, after all have ended.
inline void flock(int n, const std::function<void(int, World&)>& f) {
  std::vector<World> worlds = World::threads(n);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(n));
  std::vector<std::thread> threads;
  for (int i = 0; i < n; ++i) {
    threads.emplace_back([&, i] {
      try {
        f(i, worlds[static_cast<std::size_t>(i)]);
      } catch (...) {
        errors[static_cast<std::size_t>(i)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

constexpr int kWorkers = 3;  // where a test does not say

inline at::Tensor parameter(at::IntArrayRef sizes, double value = 0) {
  return at::full(sizes, value, at::kFloat).set_requires_grad(true);
}

inline bool is_all(const at::Tensor& tensor, double value) {
  return at::allclose(tensor.detach(), at::full_like(tensor.detach(), value), 1e-5, 1e-6);
}

// Worker i at step t descends 1/2 |x - centre|^2, whose gradient is x - centre: the centres move.
inline double centre(int i, int t) { return std::sin(1.0 + i + 0.3 * t); }

}  // namespace starling
