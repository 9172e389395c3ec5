// Sums of gradients over all workers, for schemes that need them. Everything else goes over the
// edges of transport.h, which prove the token.
//
// Every worker must call the same operations in the same order, from one thread. A failure (a
// worker is gone, or silent for World::timeouts.stalled) is an Error of one line that names the
// operation, this rank and the lost workers. It reaches all survivors within about a second, and
// all later operations fail.
#pragma once

#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "starling/core/clock.h"
#include "starling/world/world.h"

namespace starling {

class Collectives {
 public:
  virtual ~Collectives() = default;

  // Operations in flight on a contiguous CPU tensor, which must not be touched before wait() has
  // returned. Several may be in flight.
  class Pending;
  // Replaces the tensor by the sum over all workers.
  virtual Pending all_reduce_sum(const at::Tensor& tensor) = 0;
  // The same for the root alone; the other tensors are undefined afterwards.
  virtual Pending reduce_sum(const at::Tensor& tensor, int root) = 0;
  // Replaces the tensor by the root's.
  virtual Pending broadcast(const at::Tensor& tensor, int root) = 0;

  virtual Time now() const { return Clock::now(); }
};

class Collectives::Pending {
 public:
  struct Work {
    virtual ~Work() = default;
    virtual void wait() = 0;
  };
  explicit Pending(std::unique_ptr<Work> work) : work_(std::move(work)) {}
  void wait() { work_->wait(); }

 private:
  std::unique_ptr<Work> work_;
};

// The world's own collectives, or c10d's Gloo. Blocks until all workers have made theirs, at most
// world.timeouts.meet. `channel` separates several collectives of one world; it must be equal on
// all workers. Messages count ranks from `first`, if the world is a part of a larger one. Gloo
// needs a C10dStore or a FolderStore as the world's store, which World's own makers provide.
std::unique_ptr<Collectives> make_collectives(const World& world, const std::string& channel, int first = 0);

}  // namespace starling
