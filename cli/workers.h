// `--workers N` of the subcommands that several processes run together.
#pragma once

#include <string>
#include <string_view>

namespace starling::cli {

constexpr int kMostLocalWorkers = 256;

// Throws UsageError where a launcher has started this process and others: then it, not `--workers`, starts the workers.
void refuse_two_launchers(const std::string& command);

void write_stderr(std::string_view text);
// "starling: text" and a new line, to stderr.
void say_to_stderr(const std::string& text);

}  // namespace starling::cli
