// Payloads by NCCL, between workers that have a GPU each: for InfiniBand, and where NCCL is faster than TCP. STARLING_TRANSPORT=nccl
// asks for it; the GPU is torch's current device, the library the one that came with torch.
//
// Each direction between two workers is a lane: a communicator of the two of its own, so that nobody waits for a third, an edge can
// be aborted, and no order of operations is shared. Who sends names the lane (NCCL's unique id) with each piece; both join it with the
// first one. A lane lasts as long as the connection over which it was named.
//
// Blocks are in the host's memory (optim/device.h), so a piece goes from there to the GPU, by NCCL, and back to the host.
//
// NCCL wants a GPU for each worker. It has never run: tests put other communicators in its place.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include <c10/core/Device.h>

#include "starling/transport/transport.h"
#include "starling/world/world.h"

namespace starling {

// Of two workers.
class Communicator {
 public:
  virtual ~Communicator() = default;
  // Until all bytes are there; one call at a time. Throw Error where they fail, or are aborted meanwhile.
  virtual void send(std::span<const std::byte> from) = 0;
  virtual void receive(std::span<std::byte> to) = 0;
  // Ends what is under way, and fails what comes. Any thread.
  virtual void end() = 0;
};

class Communicators {
 public:
  using Id = std::array<std::byte, 128>;

  virtual ~Communicators() = default;
  virtual std::string name() const = 0;
  virtual Id new_id() = 0;
  // This worker's end, 0 or 1, of the communicator with this id. Does not wait for the other one. Throws Error.
  virtual std::unique_ptr<Communicator> join(const Id& id, int end) = 0;
};

// NCCL's, on a GPU. Throws Error where NCCL cannot be loaded.
std::unique_ptr<Communicators> nccl_communicators(c10::Device device);
// On torch's current one. Throws Error where there is none.
std::unique_ptr<Communicators> nccl_communicators();

// For World::make_transport. The communicators are made with the first transport.
std::function<std::unique_ptr<Transport>(const World&, const std::string& channel)> nccl_transports(
    std::function<std::unique_ptr<Communicators>()> make = [] { return nccl_communicators(); });

}  // namespace starling
