#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <c10/util/Flags.h>
#include <c10/util/Logging.h>
#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/usage.h"
#include "starling/core/error.h"
#include "starling/core/text.h"
#include "starling/transport/c10d/one_line.h"

namespace starling::cli {

namespace {

int fail(int code, const std::string& message) {
  fmt::print(stderr, "{} {}\n", error_prefix(), printable(message));
  return code;
}

int run(int argc, char** argv) {
  CLI::App app("Starling trains a neural network on many workers without a global all-reduce.", "starling");
  app.set_version_flag("--version", "starling " STARLING_VERSION);
  app.require_subcommand(1);
  app.footer(
      "  starling train recipes/fashion-mnist.toml --workers 4\n"
      "  starling topology --compare --workers 16\n"
      "  starling help train");
  Command command;
  for (auto* const add : {add_train, add_drill, add_simulate, add_study, add_schemes, add_topology, add_probe,
                          add_plan, add_bench, add_timeline, add_report, add_status, add_top, add_checkpoint,
                          add_eval, add_generate, add_translate, add_pack, add_doctor})
    add(app, command);
  explain(app);
  try {
    app.parse(read_arguments(argc, argv));
  } catch (const CLI::Success& asked) {  // --help, --version
    return names_no_command(app) ? fail(2, usage_message(app, asked)) : app.exit(asked);
  } catch (const CLI::ParseError& error) {
    return fail(2, usage_message(app, error));
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
