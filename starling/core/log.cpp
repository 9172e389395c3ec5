#include "starling/core/log.h"

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "starling/core/error.h"
#include "starling/core/text.h"

namespace starling {

Level level_from_environment() {
  const char* const value = std::getenv("STARLING_LOG");
  const std::string_view wanted = value == nullptr || *value == '\0' ? "warning" : value;
  if (wanted == "warning") return Level::warning;
  if (wanted == "info") return Level::info;
  if (wanted == "debug") return Level::debug;
  throw UsageError("environment: STARLING_LOG='" + std::string(wanted) + "' is not allowed" +
                   did_you_mean(std::string(wanted), {"debug", "info", "warning"}) +
                   ": debug, info or warning");
}

Log log_to_stderr(int rank, Level least) {
  return [rank, least](Level level, const std::string& message) {
    if (level >= least) {
      // One write per line, so that lines of several workers stay whole.
      const std::string line = "starling[" + std::to_string(rank) + "]: " + printable(message) + "\n";
      std::fwrite(line.data(), 1, line.size(), stderr);
    }
  };
}

}  // namespace starling
