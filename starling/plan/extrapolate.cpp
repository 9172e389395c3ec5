#include "starling/plan/extrapolate.h"

#include <algorithm>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/plan/all_reduce.h"

namespace starling {

int workers_per_host(const Profile& profile) {
  std::size_t most = 1;
  for (const Host& host : profile.hosts) most = std::max(most, host.workers.size());
  return static_cast<int>(most);
}

Network network_of(const Profile& profile, int n) {
  Network network = network_of(profile);
  if (n == profile.workers()) return network;
  const int kinds = static_cast<int>(profile.hosts.size()), each = workers_per_host(profile);
  if (kinds == 1 && n > profile.workers())
    throw UsageError(
        fmt::format("{} workers: {} were measured on one host, so the network between hosts is unknown: "
                    "measure on two or more hosts",
                    n, profile.workers()));
  const int hosts = (n + each - 1) / each;
  network.host_of.clear();
  for (int i = 0; i < n; ++i) network.host_of.push_back(i / each);
  network.hosts.clear();
  for (int h = 0; h < hosts; ++h) {
    Host& host = network.hosts.emplace_back(profile.hosts[static_cast<std::size_t>(h % kinds)]);
    if (h >= kinds) host.name += fmt::format(" ({})", h / kinds + 1);
  }
  network.links.clear();
  for (HostLink link : profile.links) {
    const int first = link.from, second = link.to;
    for (link.from = first; link.from < hosts; link.from += kinds) {
      for (link.to = second; link.to < hosts; link.to += kinds) network.links.push_back(link);
    }
  }
  return network;
}

std::vector<AllReduceTime> all_reduces_of(const Profile& profile, const Network& network) {
  if (static_cast<int>(network.host_of.size()) == profile.workers() || profile.workers() == 1)
    return profile.all_reduce;
  const Network measured = network_of(profile);
  std::vector<AllReduceTime> times = profile.all_reduce;
  for (AllReduceTime& time : times)
    time.seconds *= all_reduce_seconds(network, time.bytes) / all_reduce_seconds(measured, time.bytes);
  return times;
}

}  // namespace starling
