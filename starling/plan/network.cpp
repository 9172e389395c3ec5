#include "starling/plan/network.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <numeric>

namespace starling {

double share_of(const std::vector<Shape>& shapes, int peers) {
  if (shapes.empty()) return 1;
  const auto above = std::ranges::lower_bound(shapes, peers, {}, &Shape::peers);
  if (above == shapes.begin()) return above->share;
  if (above == shapes.end()) return shapes.back().share;
  const Shape &a = *std::prev(above), &b = *above;
  return a.share + (b.share - a.share) * (peers - a.peers) / (b.peers - a.peers);
}

Network network_of(const Profile& profile) {
  Network network;
  network.host_of.resize(static_cast<std::size_t>(profile.workers()));
  for (std::size_t h = 0; h < profile.hosts.size(); ++h) {
    for (int worker : profile.hosts[h].workers) network.host_of[worker] = static_cast<int>(h);
  }
  network.hosts = profile.hosts;
  network.latency = profile.latency;
  network.inside_latency = profile.inside_latency;
  network.inside_rate = profile.inside_rate;
  network.links = profile.links;
  network.shapes = profile.shapes;
  return network;
}

Work work_of(const Profile& profile) {
  Work work;
  work.block_bytes = work.mean_bytes = profile.blocks;
  work.compute = profile.compute;
  work.model_bytes = std::accumulate(profile.blocks.begin(), profile.blocks.end(), 0.0);
  return work;
}

}  // namespace starling
