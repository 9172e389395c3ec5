#include "cli/workers.h"

#include <cstdio>

#include <fmt/format.h>

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

void say_to_stderr(const std::string& text) { write_stderr("starling: " + printable(text) + "\n"); }

}  // namespace starling::cli
