// Where the library's messages go. The library itself never prints: whoever makes a World hands it a Log.
#pragma once

#include <functional>
#include <string>

namespace starling {

enum class Level { debug, info, warning };

// Called from any thread, one message (one line, no newline) at a time.
using Log = std::function<void(Level, const std::string&)>;

// The least level that the environment variable STARLING_LOG wants to see: "warning" (where it is not set), "info", which also says
// what each edge goes through and whose connection broke or came back, or "debug". Throws UsageError where it says anything else.
Level level_from_environment();

// Writes messages of `least` and above to stderr, each as one line "starling[rank]: message".
Log log_to_stderr(int rank, Level least = level_from_environment());

}  // namespace starling
