// The network of simulated workers (train/virtual_cluster.h), in virtual time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "starling/core/clock.h"
#include "starling/plan/network.h"
#include "starling/transport/local/local.h"

namespace starling {

inline constexpr Time kEndOfTime = Time() + std::chrono::seconds(1'000'000'000);  // of virtual time

Duration duration_of(double seconds);
// Draws number k from a lognormal distribution of mean 1 and this coefficient of variation.
double lognormal(double cv, std::uint64_t seed, int worker, std::int64_t k);

// The network's interfaces. Each sends and receives at the same time, one chunk of its host's
// workers after the other. A slow link does so too. Chunks between two workers of one host cross
// its memory.
class VirtualNetwork {
 public:
  VirtualNetwork(Network network, double cv, std::uint64_t seed)
      : network_(std::move(network)),
        cv_(cv),
        seed_(seed),
        sends_(network_.hosts.size()),
        receives_(network_.hosts.size()) {
    for (const HostLink& link : network_.links) links_[{link.from, link.to}] = {link, {}};
  }

  Crossing cross(int from, int to, std::size_t bytes, Time now);

 private:
  struct SlowLink {
    HostLink link;
    Time busy{};
  };
  const Network network_;
  const double cv_;
  const std::uint64_t seed_;
  std::int64_t crossings_ = 0;
  std::map<std::pair<int, int>, SlowLink> links_;
  std::vector<Time> sends_, receives_;  // the end of each one's last chunk
};

}  // namespace starling
