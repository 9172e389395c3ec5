// One iteration of one worker whose times do not vary, as a picture: what it computes and what is on its link when.
#pragma once

#include <vector>

namespace starling {

struct Piece {
  enum class What { forward, backward, update, link } what;
  int block = -1;  // of a forward none
  double begin = 0, end = 0;
};

struct Iteration {
  double seconds = 0;
  std::vector<Piece> pieces{};  // from 0 to `seconds`; what is on the link may begin before and end after
};

// In the letters of plan/closed_forms.h, of which these are the steps.
Iteration all_reduce_iteration(double F, const std::vector<double>& b, const std::vector<double>& u,
                               const std::vector<double>& c);
Iteration cta_iteration(double F, const std::vector<double>& b, const std::vector<double>& u,
                        const std::vector<double>& c);

}  // namespace starling
