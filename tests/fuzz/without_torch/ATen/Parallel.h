// All that optim/schemes/top_k_message.cpp takes from torch, with one thread: the sanitizers' builds
// have no torch.
#pragma once

#include <cstdint>

namespace at {

template <class F>
void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t /*grain*/, const F& f) {
  f(begin, end);
}

}  // namespace at
