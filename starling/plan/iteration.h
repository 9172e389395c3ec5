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

// The steps of plan/closed_forms.h, in its letters.
Iteration all_reduce_iteration(double F, const std::vector<double>& b, const std::vector<double>& u,
                               const std::vector<double>& c);
Iteration iteration_ahead(double F, const std::vector<double>& b, const std::vector<double>& u,
                          const std::vector<double>& c);

}  // namespace starling
