// The workers of a virtual cluster, each a thread with a turn of its own.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include "starling/transport/local/local.h"
#include "tests/threads.h"

namespace starling {

// Every host's card carries `rate` bytes a second each way, one thing after the other. Infinite: at
// once.
inline LocalNetwork virtual_network(std::shared_ptr<VirtualTime> time, double rate, Duration latency = {}) {
  auto sending = std::make_shared<std::map<int, Time>>();
  auto receiving = std::make_shared<std::map<int, Time>>();
  return {.time = std::move(time), .cross = [=](int from, int to, std::size_t bytes, Time now) {
            const Duration takes = of_seconds(static_cast<double>(bytes) / rate);
            const Time begin = std::max(now, (*sending)[from]);
            Time& there = (*receiving)[to];
            there = std::max(there, begin + latency) + takes;
            return Crossing{(*sending)[from] = begin + takes, there};
          }};
}

inline void virtual_workers(VirtualTime& time, int n, const std::function<void(int)>& work) {
  on_threads(n, [&](int k) {
    const VirtualTime::Life life(time, k);
    work(k);
  });
}

constexpr double kAtOnce = std::numeric_limits<double>::infinity();  // the rate of a link

struct VirtualHub {
  explicit VirtualHub(int n, double rate = kAtOnce, Duration latency = {})
      : n(n), hub(n, {}, virtual_network(time, rate, latency)) {}
  VirtualHub(int n, const decltype(LocalNetwork::cross)& cross)
      : n(n), hub(n, {}, {.time = time, .cross = cross}) {}
  void run(const std::function<void(int rank)>& work) { virtual_workers(*time, n, work); }

  const int n;
  const std::shared_ptr<VirtualTime> time = std::make_shared<VirtualTime>(n);
  LocalHub hub;
};

}  // namespace starling
