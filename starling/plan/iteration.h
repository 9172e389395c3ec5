// A picture of one iteration of one worker with constant times: its computation and its link as
// bars over time.
#pragma once

#include <vector>

namespace starling {

struct Bar {
  enum class What { forward, backward, update, link } what;
  int block = -1;  // a forward has none
  double begin = 0, end = 0;
};

struct Iteration {
  double seconds = 0;
  // From 0 to `seconds`; bars on the link may begin before and end after.
  std::vector<Bar> bars{};
};

// The iteration that all others are like, for
//
//   F     data wait and forward
//   b_i   backward of block i, in the order in which backward finishes them
//   u_i   update of block i
//   c_i   time of block i on the link
Iteration all_reduce_iteration(double F, const std::vector<double>& b, const std::vector<double>& u,
                               const std::vector<double>& c);
Iteration iteration_ahead(double F, const std::vector<double>& b, const std::vector<double>& u,
                          const std::vector<double>& c);

}  // namespace starling
