// All schemes, in the order of the list in optim/CMakeLists.txt. CMake generates the table.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "starling/optim/schemes/scheme.h"

namespace starling {

// The first one is the default.
std::span<const SchemeInfo* const> schemes();
// Throws UsageError with the nearest name if there is no such scheme.
const SchemeInfo& scheme_info(const std::string& name);
std::vector<std::string> scheme_names();
// The names of the wires that the scheme takes.
std::vector<std::string_view> wires_of(const SchemeInfo& info);

// Each option of any scheme once, with the schemes that have it. Options of one name have the same
// type, range and default (SchemesTable in the tests).
struct SharedOption {
  const SchemeOption* option;
  std::vector<std::string> schemes;
};
std::vector<SharedOption> scheme_options();

}  // namespace starling
