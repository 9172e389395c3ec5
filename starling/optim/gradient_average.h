// Gradients averaged over workers during backward(), as torch's DistributedDataParallel does (Li et
// al. 2020, arXiv 2006.15704): g <- 1/n Sum_j g_j.
//
// backward() computes the last block's gradients first. As soon as all gradients of a block are
// there, its bucket is sent, while backward() continues with the blocks before it. backward()
// returns when the means are in .grad. So clipping, and every other reader of gradients, sees the
// mean. If a step had no such pass (gradients set by hand, or all under NoSync), step() averages
// them. A parameter is updated if at least one worker has a gradient for it. A worker without one
// counts as zero, and gets the mean.
//
// Gradients of bf16 and fp16 are summed and sent as fp32, since a sum in so few bits would lose
// more than they have. Their mean is rounded once, into .grad.
//
// Gradients on a GPU are summed on the host too: each bucket waits for the GPU and holds up
// backward(). This path serves comparisons. Its workers must be processes: within one process,
// torch runs all backward passes of a GPU on one thread, which would wait for itself.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "starling/optim/backward_hooks.h"
#include "starling/optim/blocks.h"
#include "starling/transport/c10d/collectives.h"

namespace starling {

// The workers that get the mean of each block's gradients; none: all do. If blocks have owners,
// backward() leaves .grad unchanged, and step() puts the mean into the owner's .grad. A change of
// .grad in between would be lost, so step() throws UsageError.
struct Owners {
  int me = 0;
  std::vector<int> of_block{};
};

class GradientAverage {
 public:
  // `scheme`: for messages.
  GradientAverage(std::string scheme, std::vector<Block>& blocks, Collectives& collectives, int workers,
                  Owners owners = {});

  // Averages, unless backward() has done so. Then calls `adapt`, which takes the local step from
  // .grad.
  void step(const std::function<void()>& adapt);
  // Sets whether later backward passes average. If not, they add to .grad and send nothing.
  void set_sync(bool sync) { sync_ = sync; }
  std::uint64_t bytes_sent() const { return bytes_; }  // computed
  double seconds_waiting() const { return waiting_; }

 private:
  struct Gradient {
    const void* tensor = nullptr;
    std::uint32_t version = 0;
    bool operator==(const Gradient&) const = default;
  };
  struct Bucket {
    at::Tensor flat;  // the block's gradients in fp32, then per segment how many workers have one
    std::optional<Collectives::Pending> sum{};  // while it is in flight
    std::vector<Gradient> sent{};               // with owners: each segment's .grad when sent
    std::size_t missing = 0;                    // gradients that this pass has not produced yet
  };
  void accumulated(std::size_t parameter);
  void begin_pass();
  void start(std::size_t bucket);
  void finish_pass();
  void write_mean(std::size_t bucket);
  static std::vector<Gradient> gradients(const Block& block);

  const std::string scheme_;
  std::vector<Block>& blocks_;
  Collectives& collectives_;
  const int workers_;
  const Owners owners_;
  std::vector<Bucket> buckets_;                    // by block
  std::vector<std::vector<std::size_t>> holders_;  // by parameter: the blocks that hold some of it
  std::vector<bool> there_;                        // by parameter: its gradient is there
  // buckets not started yet; the last of them starts next, in the same order on all workers
  std::size_t left_ = 0;
  bool in_pass_ = false;
  bool averaged_ = false;  // .grad holds the mean
  bool sync_ = true;
  std::uint64_t bytes_ = 0;
  double waiting_ = 0;
  BackwardHooks hooks_;  // last: calls into the rest
};

}  // namespace starling
