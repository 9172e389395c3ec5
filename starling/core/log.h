// The destination of the library's messages. The library itself never prints; the creator of a
// World passes a Log to it.
#pragma once

#include <functional>
#include <string>

namespace starling {

enum class Level { debug, info, warning };

// May be called from any thread. One call is one message: one line, without a newline.
using Log = std::function<void(Level, const std::string&)>;

// The lowest level to show, from the environment variable STARLING_LOG: "warning" (the default),
// "info" (adds what each edge uses, and which connections broke or came back) or "debug" (adds
// warnings of parameters that were edited through `.data`). Throws UsageError for any other value.
Level level_from_environment();

// Writes messages of `least` and above to stderr, each as one line "starling[rank]: message".
Log log_to_stderr(int rank, Level least = level_from_environment());

}  // namespace starling
