#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <c10/util/Flags.h>
#include <c10/util/Logging.h>
#include <fmt/format.h>

#include "cli/commands.h"
#include "starling/core/error.h"
#include "starling/core/text.h"
#include "starling/transport/c10d/one_line.h"

namespace starling::cli {

namespace {

int fail(int code, const std::string& message) {
  fmt::print(stderr, "starling: {}\n", printable(message));
  return code;
}

// If no command was found, CLI11 says only that something was missing or unexpected.
std::string usage_message(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  if (!app.get_subcommands().empty()) return error.what();
  std::string known;
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    known += (known.empty() ? "" : ", ") + command->get_name();
  }
  if (argc < 2) return fmt::format("a command is needed: {} (starling --help describes them)", known);
  if (argv[1][0] == '-') return fmt::format("unknown option '{}' (starling --help lists them)", argv[1]);
  return fmt::format("unknown command '{}': known are {}", argv[1], known);
}

int run(int argc, char** argv) {
  CLI::App app("Starling trains a neural network on many workers without a global all-reduce.", "starling");
  app.set_version_flag("--version", "starling " STARLING_VERSION);
  app.require_subcommand(1);
  Command command;
  add_train(app, command);
  add_drill(app, command);
  add_simulate(app, command);
  add_study(app, command);
  add_schemes(app, command);
  add_topology(app, command);
  add_probe(app, command);
  add_plan(app, command);
  add_bench(app, command);
  add_timeline(app, command);
  add_report(app, command);
  add_status(app, command);
  add_top(app, command);
  add_checkpoint(app, command);
  add_eval(app, command);
  add_generate(app, command);
  add_translate(app, command);
  add_pack(app, command);
  add_doctor(app, command);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    return fail(2, usage_message(app, error, argc, argv));
  }
  return command();
}

}  // namespace

}  // namespace starling::cli

int main(int argc, char** argv) {
  using starling::cli::fail;
  // c10d logs a stack trace when the store's host is gone. Starling says it in one line.
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  int code = 0;
  try {
    code = starling::cli::run(argc, argv);
  } catch (const starling::UsageError& error) {
    code = fail(2, error.what());
  } catch (const std::exception& error) {
    code = fail(1, starling::one_line(error));
  }
  // A full disk shows only when the last bytes are written.
  if ((std::fflush(stdout) != 0 || std::ferror(stdout) != 0) && code == 0) {
    code = fail(1, fmt::format("cannot write to stdout: {}", std::strerror(errno)));
  }
#ifndef STARLING_WHOLE_EXIT  // the counters of `make coverage` are written by a destructor
  std::_Exit(code);          // Those of libtorch's operators take a third of a short command's time.
#endif
  return code;
}
