// Where the library's messages go. The library itself never prints: whoever makes a World hands it a Log.
#pragma once

#include <functional>
#include <string>

namespace starling {

enum class Level { debug, info, warning };

// Called from any thread, one message (one line, no newline) at a time.
using Log = std::function<void(Level, const std::string&)>;

// Writes messages of `least` and above to stderr, each as one line "starling[rank]: message".
Log log_to_stderr(int rank, Level least = Level::warning);

}  // namespace starling
