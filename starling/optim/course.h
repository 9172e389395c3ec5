// A number that changes over the steps of a run, such as a learning rate. Users write points:
//
//   10000:0 20000:1.1 80000:1.1 80000:0.9
//
// A point is STEP:VALUE. Between two points the number changes linearly, and after the last one it
// stays. Two points of the same step are a jump after this step. Up to the first point's step the
// number is another one, which the caller gives.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "starling/core/range.h"

namespace starling {

class Course {
 public:
  // Throws UsageError, with the option's name, for anything but points with rising steps and
  // allowed values. Without points the number is always `first`.
  Course(const std::string& option, const std::string& points, double first, Range allowed);

  // The number in this step of the run. The first step is 1.
  double at(std::uint64_t step) const;

 private:
  struct Point {
    std::uint64_t step;
    double value;
  };
  const double first_;
  std::vector<Point> points_;
};

}  // namespace starling
