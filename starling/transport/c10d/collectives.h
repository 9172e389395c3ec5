// What all workers do together: the start-up broadcast and the All-Reduce baseline, over c10d's Gloo. Gossip
// goes over the edges of transport.h instead.
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

#include "starling/world/world.h"

namespace starling {

class Collectives {
 public:
  // Blocks until all workers have constructed theirs, at most world.timeouts.meet. `channel` tells several of
  // one world apart; equal on all workers. The world's store must be a C10dStore, as those of World's own
  // makers are. Messages count ranks from `first`, where the world is a part of a larger one.
  Collectives(const World& world, const std::string& channel, int first = 0);
  ~Collectives();
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  // The root's values, everywhere. Shapes and types must be equal on all workers; any device, any strides.
  void broadcast(const std::vector<at::Tensor>& tensors, int root);

  // Start something with a tensor on the CPU, contiguous, that must not be touched before wait() has returned. Several may
  // be under way.
  class Pending;
  // The sum of all workers' takes its place.
  Pending all_reduce_sum(const at::Tensor& tensor);
  // The same at the root alone; the others' is of no use any more.
  Pending reduce_sum(const at::Tensor& tensor, int root);
  // The root's takes its place.
  Pending start_broadcast(const at::Tensor& tensor, int root);

  // Every worker's value, by rank.
  std::vector<std::string> all_gather(const std::string& value);

 private:
  struct State;
  template <class Options, class Start>
  Pending pending(const char* operation, const at::Tensor& tensor, Options options, Start start);
  std::shared_ptr<State> state_;
};

class Collectives::Pending {
 public:
  void wait();

 private:
  friend class Collectives;
  struct Work;
  explicit Pending(std::shared_ptr<Work> work) : work_(std::move(work)) {}
  std::shared_ptr<Work> work_;
};

}  // namespace starling
