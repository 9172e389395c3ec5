// The weights w of push-sum, one for each block: in rounds (pushes.h) and in pairs
// (async_push_sum.cpp).
#pragma once

#include <vector>

#include "starling/optim/schemes/scheme.h"

namespace starling {

// Visits them as the state "weights"; `set` sets all of them.
void visit_weights(StateVisitor& visitor, const std::vector<double>& w,
                   std::function<void(std::span<const double>)> set);

inline constexpr std::string_view kNoModularPush =
    "a push takes away what it adds, by its value, and modular codes say only how far two values are apart";
inline constexpr RefusedWire kNoModularPushes[] = {{Wire::int8, kNoModularPush},
                                                   {Wire::int4, kNoModularPush}};

}  // namespace starling
