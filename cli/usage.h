// The command line's words about itself: help that fits the terminal, and one line for a request
// that is wrong, with the nearest name.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace starling::cli {

// Wraps the help of `app` and of all its subcommands to COLUMNS, else to the terminal, else to 80
// columns. The footer of a command is its examples. Colours all of it on a terminal, unless
// NO_COLOR is set. Call it when all subcommands are there.
void explain(CLI::App& app);

// "help" and "help COMMAND" as --help asks for it, and "--name=" as "--name" with an empty value;
// other arguments stay. In CLI11's order: the last one first.
std::vector<std::string> read_arguments(int argc, char** argv);

// True if an argument is no name of a command, although CLI11 has accepted the command line.
bool names_no_command(const CLI::App& app);
// The error of a command line, without "starling: ".
std::string usage_message(const CLI::App& app, const CLI::ParseError& error);

// NO_COLOR is set: https://no-color.org.
bool refuses_colour();
// "starling:", in red if stderr is a terminal and NO_COLOR is not set.
std::string error_prefix();

}  // namespace starling::cli
