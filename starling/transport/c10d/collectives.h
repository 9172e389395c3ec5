// What all workers do together: the start-up broadcast and the All-Reduce baseline. Gossip goes over the edges of transport.h
// instead.
//
// Every worker must call the same operations in the same order, from one thread. A failure (a worker is gone,
// or silent for World::timeouts.stalled) is an Error in one line that names the operation, this rank and the
// workers that are gone; it reaches all survivors within about a second, and nothing works any more
// afterwards.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "starling/core/clock.h"
#include "starling/world/world.h"

namespace starling {

class Collectives {
 public:
  virtual ~Collectives() = default;

  // The root's values, everywhere. Shapes and types must be equal on all workers; any device, any strides.
  virtual void broadcast(const std::vector<at::Tensor>& tensors, int root) = 0;

  // Start something with a tensor on the CPU, contiguous, that must not be touched before wait() has returned. Several may
  // be under way.
  class Pending;
  // The sum of all workers' takes its place.
  virtual Pending all_reduce_sum(const at::Tensor& tensor) = 0;
  // The same at the root alone; the others' is of no use any more.
  virtual Pending reduce_sum(const at::Tensor& tensor, int root) = 0;
  // The root's takes its place.
  virtual Pending start_broadcast(const at::Tensor& tensor, int root) = 0;

  // Every worker's value, by rank.
  virtual std::vector<std::string> all_gather(const std::string& value) = 0;

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

// Those that the world has, or c10d's Gloo. Blocks until all workers have made theirs, at most world.timeouts.meet. `channel`
// tells several of one world apart; equal on all workers. Messages count ranks from `first`, where the world is a part of a
// larger one. Gloo's need a C10dStore as the world's store, as those of World's own makers are.
std::unique_ptr<Collectives> make_collectives(const World& world, const std::string& channel, int first = 0);

}  // namespace starling
