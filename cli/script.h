// The Python scripts of subcommands whose work Python's libraries know.
#pragma once

#include <string>
#include <vector>

namespace starling::cli {

// python/starling/NAME.py. It runs in STARLING_PYTHON, else in the Python that has the loaded
// torch, else in python3.
struct Script {
  std::string name;
  std::string packages;  // that it imports, for a message
};

// Replaces this process by the script. Throws Error if that fails.
[[noreturn]] void become(const Script& script, const std::vector<std::string>& arguments);
// Runs it with `input` on stdin, and returns its stdout. Blocks until it ends. If it fails, it has
// said why on stderr. Then throws UsageError after exit code 2, else Error.
std::string output_of(const Script& script, const std::vector<std::string>& arguments,
                      const std::string& input);

}  // namespace starling::cli
