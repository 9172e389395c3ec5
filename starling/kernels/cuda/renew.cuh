// The updates of gossip's held blocks (gossip/held_block.h) on a GPU: the momentum, and
// Kernels::renew (kernels/update.h). The bits are those of the processor, as in update.cuh.
#pragma once

#include <algorithm>
#include <cstdint>

#include "starling/kernels/cuda/segment.h"
#include "starling/kernels/cuda/update.cuh"

namespace starling::kernels::cuda {

inline void renew(const Renewal& s, Mine& my) {
  Floats x = read(s.x + my.at, my.count), x_tilde = {};
  if (s.x_tilde != nullptr) x_tilde = read(s.x_tilde + my.at, my.count);
  for (std::uint32_t i = 0; i < kSide && s.momentum != 0; ++i) {
    const float towards = s.momentum * (x_tilde.at[i] - x.at[i]);
    x.at[i] += towards;
    x_tilde.at[i] -= towards;
  }
  if (s.p.values != nullptr) {
    load(s.p, my);
    const Floats taken = read(s.taken + my.at, my.count);
    for (std::uint32_t i = 0; i < kSide; ++i) {
      const float d = s.scale * (my.x.at[i] - taken.at[i]);
      x.at[i] += d;
      x_tilde.at[i] += d;
    }
    my.x = x;
    store(s.p, /*moves=*/true, my);
    write(x, s.taken + my.at, my.count);
  }
  write(x, s.x + my.at, my.count);
  if (s.x_tilde != nullptr) write(x_tilde, s.x_tilde + my.at, my.count);
}

inline void renew(const Renewal* segments, std::uint32_t count) {
  const Renewal s = segment_of(segments, count, blockIdx.x);
  for (std::uint32_t k = 0; k < kTimes; ++k) {
    Mine my;
    my.at =
        std::uint64_t{blockIdx.x - s.first_block} * kPerThreadBlock + (k * kThreads + threadIdx.x) * kSide;
    my.count = static_cast<std::uint32_t>(std::min(s.n - std::min(my.at, s.n), std::uint64_t{kSide}));
    renew(s, my);
  }
}

}  // namespace starling::kernels::cuda

// Like the entries of update.cuh, without neighbours and without the check for finite values.
extern "C" __global__ void __launch_bounds__(starling::kernels::cuda::kThreads)
    starling_renew(const starling::kernels::cuda::Renewal* segments, std::uint32_t count,
                   const starling::kernels::Mix*, std::uint32_t*) {
  starling::kernels::cuda::renew(segments, count);
}
