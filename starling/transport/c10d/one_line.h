// A failure message of torch or Gloo in one line, without backtrace, source place and further
// lines.
#pragma once

#include <exception>
#include <string>

namespace starling {

std::string one_line(const std::exception& failure);

}  // namespace starling
