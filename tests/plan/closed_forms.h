// The runtime model if nothing varies and no interface is shared, for tests: the steady time of a
// step in closed form.
//
//   F      data wait and forward
//   b_i    backward of block i, in the order in which backward finishes them; B their sum
//   u_i    update of block i; U their sum
//   c_i    time of block i on the link; C their sum
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace starling {

// Mixing::ahead (combine-then-adapt). A block has the whole iteration to cross the link, but is not
// on the link during its update. This matters only for a single block:
//   T = max(F + B + U, C, max over i of (u_i + c_i))
inline double step_ahead(double F, double B, const std::vector<double>& u, const std::vector<double>& c) {
  double U = 0, C = 0, longest = 0;
  for (std::size_t i = 0; i < u.size(); ++i) {
    U += u[i];
    C += c[i];
    longest = std::max(longest, u[i] + c[i]);
  }
  return std::max({F + B + U, C, longest});
}

// Mixing::inside (adapt-then-combine). A step waits for the blocks that it sends, so a block
// overlaps only with the updates of other blocks.
//   T = F + B + max over i of (u_1 + .. + u_i + c_i + .. + c_last)
// The last term lies between max(U, C) and max(U, C) plus one block.
inline double step_inside(double F, double B, const std::vector<double>& u, const std::vector<double>& c) {
  double updated = 0, sent = 0;
  for (std::size_t i = 0; i < u.size(); ++i) {
    updated += u[i];
    sent = std::max(sent, updated) + c[i];
  }
  return F + B + sent;
}

// All-reduce of gradients in buckets during backward, as torch's DDP does. E_0 = F, S_i = F + b_1 +
// .. + b_i:
//   E_i = max(E_(i-1), S_i) + c_i,   T = E_last + U
inline double all_reduce_step(double F, const std::vector<double>& b, const std::vector<double>& c,
                              double U) {
  double S = F, E = F;
  for (std::size_t i = 0; i < b.size(); ++i) {
    S += b[i];
    E = std::max(E, S) + c[i];
  }
  return E + U;
}

}  // namespace starling
