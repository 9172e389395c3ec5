#include "starling/core/log.h"

#include <cstdio>

namespace starling {

Log log_to_stderr(int rank, Level least) {
  return [rank, least](Level level, const std::string& message) {
    if (level >= least) {
      // One write per line, so that lines of several workers do not mix.
      const std::string line = "starling[" + std::to_string(rank) + "]: " + message + "\n";
      std::fwrite(line.data(), 1, line.size(), stderr);
    }
  };
}

}  // namespace starling
