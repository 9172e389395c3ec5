// The lines of a log to which several threads write.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "starling/core/log.h"

namespace starling {

class LogLines {
 public:
  // The log, for lines of `least` and above; it writes to this object.
  Log log(Level least = Level::warning) {
    return [this, least](Level level, const std::string& line) {
      const std::lock_guard lock(mutex_);
      if (level >= least) lines_.push_back(line);
    };
  }
  std::vector<std::string> all() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }
  // Each line with its end.
  std::string text() {
    std::string text;
    for (const std::string& line : all()) text += line + "\n";
    return text;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

}  // namespace starling
