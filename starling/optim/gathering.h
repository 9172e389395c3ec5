// All workers of a world together: what they agree on and hand out before they exchange blocks, and
// what a tool gathers. The edges are the world's own, which prove the token.
//
// Collective: every worker makes one, and calls the same functions in the same order. All workers
// take part or all throw: a worker that dies, falls silent or leaves is an Error that names it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "starling/exchange/exchange.h"
#include "starling/transport/local/local.h"
#include "starling/world/world.h"

namespace starling {

class Gathering {
 public:
  // Blocks until all workers have come, at most world.timeouts.meet. `channel`: see World.
  Gathering(const World& world, const std::string& channel);
  // These workers alone, by rising rank; this one is among them. The same on all of them.
  Gathering(const World& world, const std::string& channel, std::vector<int> members);
  // Blocks until all workers have called it.
  void wait() { maximum({}); }
  // Replaces each value by the largest of all workers.
  void maximum(std::span<std::int64_t> values);
  // Every worker's text, by rank; empty for a rank that is no member.
  std::vector<std::string> texts(const std::string& mine);
  // Copies the first worker's values to all. Types and sizes are equal on all workers; any device,
  // any strides.
  void spread(const std::vector<at::Tensor>& tensors);

  const std::vector<int>& members() const { return members_; }
  // For averages.
  Exchange& exchange() { return exchange_; }

 private:
  const int rank_, size_;
  const std::vector<int> members_;
  Exchange exchange_;
};

// For World::make_transport of workers in virtual time: local_transports(), but a Gathering takes
// no time.
decltype(World::make_transport) virtual_transports(const LocalNetwork& network);

}  // namespace starling
