// Workers on threads of this process, over the local transport or another: two blocks each, and the
// step of CTA without a gradient.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "starling/topology/schedules.h"
#include "starling/transport/local/local.h"
#include "tests/eventually.h"
#include "tests/exchange/one_thread.h"
#include "tests/log_lines.h"
#include "tests/threads.h"

namespace starling {

using std::chrono::milliseconds;

struct Worker {
  Worker(LocalHub& hub, int rank, const Schedule& schedule, Patience patience, Wire wire = Wire::fp32,
         int one_in = 1, double jump_guard = 0)
      : Worker(hub.endpoint(rank), schedule, patience, wire, one_in, jump_guard) {}
  Worker(std::unique_ptr<Transport> over, const Schedule& schedule, Patience patience, Wire wire,
         int one_in = 1, double jump_guard = 0)
      : transport(over.get()),
        exchange(std::move(over), schedule, {size, size},
                 {.patience = patience,
                  .log = warnings.log(),
                  .contents = {.wire = wire, .one_in = one_in, .jump_guard = jump_guard}}),
        grids{Grid(wire, schedule.rounds.size() * static_cast<std::size_t>(one_in)),
              Grid(wire, schedule.rounds.size() * static_cast<std::size_t>(one_in))} {
    std::mt19937_64 random(static_cast<std::uint64_t>(transport->rank()) + 1);
    for (auto& block : x) {
      for (float& value : block) value = std::normal_distribution<float>()(random);
    }
  }
  void begin() {
    exchange.meet();
    for (int b = 0; b < 2; ++b) write(b);
  }
  void write(int b) {
    exchange.start(b, write_block(x[b], exchange.outgoing(b), lie.value_or(grids[b].next())));
  }
  // Mixes the arrivals, and returns their number.
  int mix(int b) {
    const auto arrived = exchange.finish(b);
    mix_block(x[b], arrived, grids[b]);
    return static_cast<int>(arrived.size());
  }
  // Returns how many arrivals were mixed, over both blocks.
  int step() {
    int mixed = 0;
    for (int b = 0; b < 2; ++b) {
      mixed += mix(b);
      write(b);
    }
    return mixed;
  }
  // The last call. Blocks in flight would be missing in the sum.
  void end() { mix(0), mix(1); }
  double sum() const {
    double sum = 0;
    for (const auto& block : x) sum = std::accumulate(block.begin(), block.end(), sum);
    return sum;
  }
  std::vector<std::string> said() { return warnings.all(); }

  static constexpr std::size_t size = 100'000;  // more than one chunk
  LogLines warnings;
  std::vector<float> x[2]{std::vector<float>(size), std::vector<float>(size)};
  Transport* const transport;  // the exchange's
  Exchange exchange;
  Grid grids[2];                // of modular codes
  std::optional<int> lie = {};  // in place of the grid's exponent
};

// Three edges that are no group, because they do not take the mean.
inline Schedule triangle() {
  Graph graph(3);
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 3; ++j) {
      if (i != j) graph.neighbours[static_cast<std::size_t>(i)].push_back({j, 0.3});
    }
  }
  return {"triangle", {graph}};
}

struct Workers : OnThreads<Worker> {
  double sum() const {
    double sum = 0;
    for (const auto& worker : workers) sum += worker->sum();
    return sum;
  }
};

struct Flock : Workers {
  Flock(const std::string& schedule, int n, Patience patience = {}, Wire wire = Wire::fp32, int one_in = 1)
      : Flock(make_schedule(schedule, n), patience, wire, one_in) {}
  explicit Flock(const Schedule& schedule, Patience patience = {}, Wire wire = Wire::fp32, int one_in = 1,
                 double jump_guard = 0)
      : hub(schedule.workers()) {
    for (int i = 0; i < schedule.workers(); ++i) {
      workers.push_back(std::make_unique<Worker>(hub, i, schedule, patience, wire, one_in, jump_guard));
    }
    everyone([](Worker& w) { w.begin(); });
  }
  // So many steps of all, on this thread. Returns how many arrivals each has mixed.
  std::vector<int> steps(int times) {
    std::vector<int> mixed(workers.size());
    for (int t = 0; t < times; ++t) {
      for (std::size_t i = 0; i < workers.size(); ++i) mixed[i] += workers[i]->step();
    }
    return mixed;
  }
  // Breaks and mends the edge of workers 0 and 1, until a step of all mixes the whole again.
  testing::AssertionResult mends_its_edge(int whole) {
    for (int t = 0; t < 30; ++t) {
      if (t % 3 == 0) hub.sever(0, 1);
      if (t % 3 == 1) hub.mend(0, 1);
      steps(1);
    }
    hub.mend(0, 1);
    return eventually([&] {
      const std::vector<int> mixed = steps(1);
      return std::accumulate(mixed.begin(), mixed.end(), 0) == whole;
    });
  }
  // Worker 2 falls asleep, and 0 and 1 go on without it. Returns what 1 mixed in the last 20 steps.
  int steps_while_2_sleeps() {
    hub.pause(2);
    std::thread one([&] { workers[1]->step(), workers[1]->step(); });
    workers[0]->step(), workers[0]->step();
    one.join();
    int mixed = 0;
    for (int t = 0; t < 20; ++t) {
      workers[0]->step();
      mixed += workers[1]->step();
    }
    hub.resume(2);
    return mixed;
  }
  LocalHub hub;
};

}  // namespace starling
