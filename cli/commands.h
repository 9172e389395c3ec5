// The subcommands of `starling`. Each file has one, and adds its options to the command line.
//
// Results go to stdout, everything else to stderr. Errors are exceptions, which main writes as one
// line. Exit codes: 0 done, 1 the run failed, 2 the command line or an input that it names is wrong
// (core/input.h), 130 interrupted, 143 terminated.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace starling::cli {

// The action that the command line requests. Returns the exit code.
using Command = std::function<int()>;

// Each adds its subcommand to `app`. If the command line names it, `command` becomes its action.
void add_train(CLI::App& app, Command& command);
void add_drill(CLI::App& app, Command& command);
void add_simulate(CLI::App& app, Command& command);
void add_study(CLI::App& app, Command& command);
void add_schemes(CLI::App& app, Command& command);
void add_topology(CLI::App& app, Command& command);
void add_probe(CLI::App& app, Command& command);
void add_plan(CLI::App& app, Command& command);
void add_bench(CLI::App& app, Command& command);
void add_timeline(CLI::App& app, Command& command);
void add_report(CLI::App& app, Command& command);
void add_status(CLI::App& app, Command& command);
void add_top(CLI::App& app, Command& command);
void add_checkpoint(CLI::App& app, Command& command);
void add_eval(CLI::App& app, Command& command);
void add_generate(CLI::App& app, Command& command);
void add_pack(CLI::App& app, Command& command);
void add_translate(CLI::App& app, Command& command);
void add_doctor(CLI::App& app, Command& command);

}  // namespace starling::cli
