// Threads for whose end the caller waits.
#pragma once

#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

namespace starling {

// f(0) to f(n - 1), each on a thread of its own.
template <class F>
void on_threads(int n, F&& f) {
  std::vector<std::thread> threads;
  for (int i = 0; i < n; ++i) threads.emplace_back([&f, i] { f(i); });
  for (std::thread& thread : threads) thread.join();
}

// The same with what `all` holds.
template <class All, class F>
void on_threads_of(All&& all, F&& f) {
  on_threads(static_cast<int>(all.size()), [&](int i) { f(all[static_cast<std::size_t>(i)]); });
}

// Workers whose calls wait for each other.
template <class Worker>
struct OnThreads {
  // Runs f on one thread for each that is still there.
  template <class F>
  void everyone(F&& f) {
    on_threads_of(workers, [&](auto& worker) {
      if (worker) f(*worker);
    });
  }
  Worker& operator[](int i) { return *workers[static_cast<std::size_t>(i)]; }
  std::vector<std::unique_ptr<Worker>> workers;
};

}  // namespace starling
