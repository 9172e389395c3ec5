// A message about what may happen again and again. It is said the first time, and then again after
// pauses that grow from a second to a minute.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "starling/core/clock.h"

namespace starling {

class Seldom {
 public:
  // The end of the message, which says how many were left out since the last one; nothing: it is
  // left out too. If it has not come for as long as the last pause, the next one is a first one.
  std::optional<std::string> say(Time now) {
    if (next_ && now < *next_) {
      ++left_out_;
      return std::nullopt;
    }
    const bool is_first = !next_ || now - *next_ >= pause_;
    pause_ = is_first ? kShortest : std::min(2 * pause_, kLongest);
    next_ = now + pause_;
    const std::uint64_t more = std::exchange(left_out_, 0);
    return more == 0 ? "" : fmt::format(" (and {} more since the last such line)", more);
  }

 private:
  static constexpr Duration kShortest = std::chrono::seconds(1), kLongest = std::chrono::minutes(1);
  Duration pause_ = kShortest;
  std::optional<Time> next_{};
  std::uint64_t left_out_ = 0;
};

}  // namespace starling
