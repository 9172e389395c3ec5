// Reads the compute half of a profile (plan/profile.h) from a worker's timeline: its own work in
// each step.
//
//   data_wait    the "data" spans
//   forward      the "forward" span; with accumulation, all passes before the last backward pass
//   backward     per block: in the last "backward", from the block before until all gradients of
//                this block are ready
//   update       per block: its "mix + update" spans
//
// Waiting for other workers is left out, and so are steps that the timeline holds in part. The
// first ten steps, or the first fifth if that is less, are left out too: memory and caches are cold
// then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "starling/core/timeline.h"
#include "starling/plan/profile.h"

namespace starling {

struct RecordedCompute {
  Profile profile;                 // of one worker; blocks in the order of their updates
  std::vector<std::size_t> order;  // of these blocks, as backward() finished them in the last step
};
// `sizes`: parameters in each block. Throws Error if no step is whole.
RecordedCompute recorded_compute(const std::vector<Timeline::Span>& spans,
                                 const std::vector<std::int64_t>& sizes);

// Returns the profile with its blocks in that order.
Profile in_order(const Profile& profile, const std::vector<std::size_t>& order);

}  // namespace starling
