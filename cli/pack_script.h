// python/starling/pack.py, which knows raw data and tokenizers by Python's libraries.
// STARLING_PYTHON names the Python; else it is that of the loaded torch, else python3.
#pragma once

#include <string>
#include <vector>

namespace starling::cli {

// Replaces this process by the script with these arguments. Returns only by an Error.
[[noreturn]] void become_pack_script(const std::vector<std::string>& arguments);
// Runs it with `input` on stdin, and returns its stdout. Blocks until it ends. Throws Error if it
// fails; the script has said why on stderr.
std::string output_of_pack_script(const std::vector<std::string>& arguments, const std::string& input);

}  // namespace starling::cli
