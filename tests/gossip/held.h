// The work of a training thread on a block that gossip holds.
#pragma once

#include <numeric>
#include <span>

#include "starling/gossip/a2cid2.h"
#include "starling/gossip/held_block.h"

namespace starling {

// By how much the sums of x and of y have changed.
struct Added {
  double x = 0, y = 0;
};

// Adds d(i) to x and x~, and another one to y.
template <class D>
Added add_gradient(const Held& held, D&& d) {
  mix_momentum(held.x, held.x_tilde, held.eta_tau);
  Added added;
  const auto add = [](float& value, float by) {
    const float before = value;
    value += by;
    return double{value} - double{before};
  };
  for (std::size_t i = 0; i < held.x.size(); ++i) {
    const float by = d(i);
    added.x += add(held.x[i], by);
    if (!held.x_tilde.empty()) held.x_tilde[i] += by;
  }
  for (std::size_t i = 0; i < held.y.size(); ++i) added.y += add(held.y[i], d(i));
  return added;
}

// The sum that gossip keeps, up to now: of x, or with momentum of (x + x~) / 2.
inline double kept_sum(const Held& held) {
  mix_momentum(held.x, held.x_tilde, held.eta_tau);
  const auto sum = [](std::span<const float> values) {
    return std::accumulate(values.begin(), values.end(), 0.0);
  };
  return held.x_tilde.empty() ? sum(held.x) : (sum(held.x) + sum(held.x_tilde)) / 2;
}

}  // namespace starling
