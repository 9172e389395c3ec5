// `--workers N` of the subcommands that several processes run together.
#pragma once

#include <string>
#include <string_view>

#include "starling/core/log.h"

namespace starling::cli {

constexpr int kMostLocalWorkers = 256;

// Throws UsageError if a launcher has started this process and others. Then the launcher, not
// `--workers`, starts the workers.
void refuse_two_launchers(const std::string& command);

void write_stderr(std::string_view text);
bool stderr_is_terminal();
int stderr_columns();  // the width of that terminal, 80 if it does not say
// Replaces the line on which the terminal's cursor stands, by no more than fits into it.
void show_on_line(const std::string& text);
// Writes a message and a newline to stderr. On a terminal it replaces a worker's progress line.
void write_message(const std::string& message);
// The same for "starling: text".
void say_to_stderr(const std::string& text);
// The log of commands that have no World: every message, as say_to_stderr().
void warn_to_stderr(Level level, const std::string& text);

}  // namespace starling::cli
