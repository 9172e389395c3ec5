// Subcommands that become a Python script: their libraries are Python's.
#pragma once

#include <string>
#include <vector>

namespace starling::cli {

// Replaces this process by python/starling/NAME.py, in STARLING_PYTHON, else in the Python that has
// the loaded torch, else in python3. Throws Error if that fails. The script imports `packages`.
[[noreturn]] void become_script(const std::string& name, const std::string& packages,
                                const std::vector<std::string>& arguments);

}  // namespace starling::cli
