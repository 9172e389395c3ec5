// The subcommands of `starling`: one file each, which adds its options to the command line.
//
// Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 usage, 130 interrupted,
// 143 terminated. An error is an exception; main writes it as one line.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace starling::cli {

// What the command line asks for; returns the exit code.
using Command = std::function<int()>;

// Each adds its subcommand to `app`. When the command line names it, `command` becomes what is to be done.
void add_train(CLI::App& app, Command& command);
void add_simulate(CLI::App& app, Command& command);
void add_schemes(CLI::App& app, Command& command);
void add_topology(CLI::App& app, Command& command);
void add_probe(CLI::App& app, Command& command);
void add_plan(CLI::App& app, Command& command);
void add_bench(CLI::App& app, Command& command);
void add_timeline(CLI::App& app, Command& command);
void add_checkpoint(CLI::App& app, Command& command);
void add_doctor(CLI::App& app, Command& command);

}  // namespace starling::cli
