// The expected end of bad input: one clear line.
#pragma once

#include <functional>
#include <string>

#include "starling/core/error.h"

namespace starling {

// The message of the exception that f() must throw: any Error, or UsageError alone.
template <class E = Error>
std::string refusal(const std::function<void()>& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace starling
