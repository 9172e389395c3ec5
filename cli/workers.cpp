#include "cli/workers.h"

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "starling/core/error.h"
#include "starling/core/text.h"
#include "starling/world/environment.h"

namespace starling::cli {

void refuse_two_launchers(const std::string& command) {
  const Variables variable = process_variables();
  const std::string launcher = launcher_name(variable);
  if (launcher == "torchrun") {
    throw UsageError(
        fmt::format("{}: --workers and the environment variable RANK or WORLD_SIZE are both set: either this "
                    "command starts the workers or torchrun does",
                    command));
  }
  const int tasks = launcher.empty() ? 1 : read_launch(variable)->size;
  if (tasks > 1) {
    throw UsageError(
        fmt::format("{}: --workers in each of the {} processes that {} has started: either this command "
                    "starts the workers or {} does",
                    command, tasks, launcher, launcher));
  }
}

void write_stderr(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

bool stderr_is_terminal() { return isatty(STDERR_FILENO) != 0; }

int stderr_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void show_on_line(const std::string& text) {
  write_stderr("\r\x1b[K" + text.substr(0, static_cast<std::size_t>(std::max(stderr_columns() - 1, 0))));
}

void write_message(const std::string& message) {
  write_stderr(fmt::format("{}{}\n", stderr_is_terminal() ? "\r\x1b[K" : "", printable(message)));
}

void say_to_stderr(const std::string& text) { write_message("starling: " + text); }

void warn_to_stderr(Level /*level*/, const std::string& text) { say_to_stderr(text); }

}  // namespace starling::cli
