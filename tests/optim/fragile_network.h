// Hubs of a network, one for each channel, whose connections break.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "starling/transport/c10d/virtual_collectives.h"
#include "tests/virtual_workers.h"

namespace starling {

class FragileNetwork {
 public:
  FragileNetwork(int n, const std::shared_ptr<VirtualTime>& time)
      : n_(n), network_(virtual_network(time, 1e6)) {}
  explicit FragileNetwork(int n) : n_(n) {}  // in real time
  // For World::make_transport.
  auto transports() {
    return [this](const World& world, const std::string& channel) {
      const std::lock_guard lock(mutex_);
      auto& hub = hubs_[channel];
      if (!hub) hub = std::make_unique<LocalHub>(n_, world.timeouts, network_);
      return hub->endpoint(world.rank);
    };
  }
  void sever(int a, int b) {
    const std::lock_guard lock(mutex_);
    for (auto& [channel, hub] : hubs_) hub->sever(a, b);
  }
  void mend(int a, int b) {
    const std::lock_guard lock(mutex_);
    for (auto& [channel, hub] : hubs_) hub->mend(a, b);
  }
  // Breaks and mends the edge of workers 0 and 1 so often, at moments of all kinds.
  void break_often(VirtualTime& time, int times) {
    for (int k = 0; k < times; ++k) {
      const Time begin = time.now() + std::chrono::milliseconds(7 * k);
      time.at(begin, [this] { sever(0, 1); });
      time.at(begin + std::chrono::milliseconds(2), [this] { mend(0, 1); });
    }
  }

 private:
  const int n_;
  const LocalNetwork network_{};
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<LocalHub>> hubs_;
};

// f(worker, world, time, network) on n threads in virtual time.
inline void fragile_flock(int n, const std::function<void(int, World&, VirtualTime&, FragileNetwork&)>& f) {
  const auto time = std::make_shared<VirtualTime>(n);
  FragileNetwork network(n, time);
  std::vector<World> worlds = World::threads(n);
  const auto collectives = virtual_collectives(time, [](int, std::size_t) { return Duration(0); });
  virtual_workers(*time, n, [&](int rank) {
    World& world = worlds[static_cast<std::size_t>(rank)];
    world.make_transport = network.transports();
    world.make_collectives = collectives;
    f(rank, world, *time, network);
  });
}

}  // namespace starling
