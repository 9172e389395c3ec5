// starling pack: makes the files that training reads from raw data. It becomes
// python/starling/pack.py: packing happens once, and Python's libraries know the formats.
#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "cli/commands.h"
#include "starling/core/error.h"

namespace starling::cli {

namespace {

namespace fs = std::filesystem;

// A wheel has the script beside the program's folder, a build folder has the source tree's.
std::string script() {
  std::error_code none;
  const fs::path own = fs::read_symlink("/proc/self/exe", none).parent_path().parent_path() / "pack.py";
  return fs::exists(own, none) ? own.string() : STARLING_PACK_SCRIPT;
}

// STARLING_PYTHON, else the Python of the torch that the program was built with, else python3.
std::string python() {
  std::error_code none;
  if (const char* given = std::getenv("STARLING_PYTHON"); given != nullptr && *given != '\0') return given;
  return fs::exists(STARLING_BUILT_WITH_PYTHON, none) ? STARLING_BUILT_WITH_PYTHON : "python3";
}

int become_script(const std::vector<std::string>& arguments) {
  std::vector<std::string> words{python(), "-B", script()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execvp(pointers[0], pointers.data());
  throw Error(
      fmt::format("pack needs Python 3 with numpy, but \"{}\" cannot be started: {}; STARLING_PYTHON "
                  "names another one",
                  words[0], std::strerror(errno)));
}

}  // namespace

void add_pack(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("pack", "Make the files that training reads from raw data, in Python");
  sub->set_help_flag();  // the script has its own
  sub->prefix_command();
  sub->callback([sub, &command] { command = [words = sub->remaining()] { return become_script(words); }; });
}

}  // namespace starling::cli
