// From a worker's timeline to the compute half of a profile (plan/profile.h): what it spends on its own in each step.
//
//   data_wait    its "data" spans
//   forward      "forward"; with accumulation all that comes before the last backward pass
//   backward     of a block: in the last "backward", from the block before up to where all its gradients are there
//   update       of a block: its "mix + update" spans
//
// The waiting for others between these is left out. So are steps that are not whole in the timeline, and of the others the
// first ten, or the first fifth if that is less, in which memory and caches are new.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "starling/core/timeline.h"
#include "starling/plan/profile.h"

namespace starling {

struct RecordedCompute {
  Profile profile;  // of one worker; blocks in the order in which they are updated
  std::vector<std::size_t>
      order;  // of these blocks, the one first that backward() finished first, in the last step
};
// `sizes`: parameters in each block. Throws Error where no step is whole.
RecordedCompute recorded_compute(const std::vector<Timeline::Span>& spans,
                                 const std::vector<std::int64_t>& sizes);

// The profile with its blocks in that order.
Profile in_order(const Profile& profile, const std::vector<std::size_t>& order);

}  // namespace starling
