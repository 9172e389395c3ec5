// python/starling/pack.py, which knows the formats of raw data and the tokenizers, by Python's
// libraries. STARLING_PYTHON names the Python, else it is the one of the loaded torch, else python3.
#pragma once

#include <string>
#include <vector>

namespace starling::cli {

// Replaces this process by the script with these arguments. Returns only by an Error.
[[noreturn]] void become_pack_script(const std::vector<std::string>& arguments);
// What it writes to stdout, given `input` on stdin. Blocks until it ends. Throws Error, after the
// script has said why on stderr, if it fails.
std::string output_of_pack_script(const std::vector<std::string>& arguments, const std::string& input);

}  // namespace starling::cli
