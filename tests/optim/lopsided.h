// A directed topology on which the weights of push-sum differ.
#pragma once

#include "tests/optim/flock.h"

namespace starling {

// Two rounds of directed edges over five workers: columns sum to 1, rows do not.
struct Lopsided : TopologyFile {
  static constexpr int n = 5;
  static constexpr double ranks = 10, squares = 30;  // sums over the workers
  Lopsided()
      : TopologyFile(
            "workers = 5\n"
            "[[rounds]]\nweights = \"push-sum\"\nedges = [[0, 1], [0, 2], [3, 0], [1, 3], [2, 4]]\n"
            "[[rounds]]\nweights = \"push-sum\"\nedges = [[2, 0], [1, 0], [0, 3], [4, 1]]\n") {}
};

}  // namespace starling
