// starling pack: makes the files that training reads from raw data. It becomes
// python/starling/pack.py: packing happens once, and Python's libraries know the formats.
#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/script.h"

namespace starling::cli {

void add_pack(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("pack", "Make the files that training reads from raw data, in Python");
  sub->set_help_flag();  // the script has its own
  sub->prefix_command();
  sub->callback([sub, &command] {
    command = [words = sub->remaining()]() -> int { become({"pack", "numpy"}, words); };
  });
}

}  // namespace starling::cli
