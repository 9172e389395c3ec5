// The part of CUDA's language that update.cuh and renew.cuh (starling/kernels/cuda) use, for an
// ordinary compiler, so that their threads run here.
//
// The lanes of a warp run in turn, each on a stack of its own, until they meet at a reduction. A
// reduction that another lane does not reach would hang a GPU, and is detected here.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <stdexcept>

#include <ucontext.h>

namespace device {

struct Index {
  std::uint32_t x = 0;
};

// The 32 lanes of the current warp.
class Warp {
 public:
  static constexpr std::uint32_t kLanes = 32;

  // Runs body(context) in each lane, with `thread` set to its threadIdx.
  void run(void (*body)(void*), void* context, std::uint32_t first_thread, Index& thread) {
    body_ = body, context_ = context;
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
      Lane& my = lanes_[lane];
      my.ended = false;
      getcontext(&my.context);
      my.context.uc_stack.ss_sp = my.stack.get();
      my.context.uc_stack.ss_size = kStack;
      my.context.uc_link = &scheduler_;
      makecontext(&my.context, [] { current->enter(); }, 0);
    }
    current = this;
    for (;;) {
      for (lane_ = 0; lane_ < kLanes; ++lane_) {
        if (lanes_[lane_].ended) continue;
        thread.x = first_thread + lane_;
        swapcontext(&scheduler_, &lanes_[lane_].context);
      }
      const auto ended = std::count_if(lanes_.begin(), lanes_.end(), [](const Lane& l) { return l.ended; });
      if (ended == kLanes) return;
      if (ended != 0) throw std::logic_error("some lanes wait for others that have ended: a GPU would hang");
      for (const Lane& my : lanes_) {
        if (my.place != lanes_[0].place) throw std::logic_error("lanes of a warp wait at different places");
      }
      // All have come: each lane's value is there for all.
      for (std::uint32_t lane = 0; lane < kLanes; ++lane) given_[lane] = lanes_[lane].gives;
    }
  }

  // The values of all lanes at this place.
  const std::array<std::uint32_t, kLanes>& together(int place, std::uint32_t gives) {
    Lane& my = lanes_[lane_];
    my.place = place, my.gives = gives;
    swapcontext(&my.context, &scheduler_);
    return given_;
  }

  static inline Warp* current = nullptr;

 private:
  static constexpr std::size_t kStack = 256 << 10;
  struct Lane {
    std::unique_ptr<char[]> stack{new char[kStack]};
    ucontext_t context{};
    bool ended = false;
    int place = 0;
    std::uint32_t gives = 0;
  };
  void enter() {
    body_(context_);
    lanes_[lane_].ended = true;
  }
  void (*body_)(void*) = nullptr;
  void* context_ = nullptr;
  std::uint32_t lane_ = 0;
  std::array<Lane, kLanes> lanes_;
  std::array<std::uint32_t, kLanes> given_{};
  ucontext_t scheduler_{};
};

}  // namespace device

#define __global__
#define __launch_bounds__(threads)
static device::Index blockIdx, threadIdx;
static constexpr int warpSize = device::Warp::kLanes;

inline std::uint32_t __reduce_add_sync(std::uint32_t, std::uint32_t value) {
  const auto& all = device::Warp::current->together(1, value);
  return std::accumulate(all.begin(), all.end(), std::uint32_t{0});
}
inline std::int32_t __reduce_max_sync(std::uint32_t, std::int32_t value) {
  const auto& all = device::Warp::current->together(2, static_cast<std::uint32_t>(value));
  std::int32_t largest = static_cast<std::int32_t>(all[0]);
  for (const std::uint32_t one : all) largest = std::max(largest, static_cast<std::int32_t>(one));
  return largest;
}
// Threads run one after the other, so atomic operations of the device are plain here.
inline void atomicAdd(std::uint32_t* to, std::uint32_t value) { *to += value; }
inline void atomicOr(std::uint32_t* to, std::uint32_t value) { *to |= value; }
inline void atomicMax(std::int32_t* to, std::int32_t value) { *to = std::max(*to, value); }
