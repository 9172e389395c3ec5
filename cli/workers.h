// `--workers N` of the subcommands that several processes run together.
#pragma once

#include <string>
#include <string_view>

namespace starling::cli {

constexpr int kMostLocalWorkers = 256;

// Throws UsageError if a launcher has started this process and others. Then the launcher, not
// `--workers`, starts the workers.
void refuse_two_launchers(const std::string& command);

void write_stderr(std::string_view text);
// Writes "starling: text" and a newline to stderr.
void say_to_stderr(const std::string& text);

}  // namespace starling::cli
