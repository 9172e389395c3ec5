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
#include "starling/core/library.h"

namespace starling::cli {

namespace {

namespace fs = std::filesystem;

// Beside the program's folder.
fs::path script() {
  const fs::path found = fs::read_symlink("/proc/self/exe").parent_path().parent_path() / "pack.py";
  std::error_code none;
  if (!fs::exists(found, none)) throw Error(fmt::format("pack needs the script {}", found.string()));
  return found;
}

// STARLING_PYTHON, else the Python that has the loaded torch, else python3.
std::string python() {
  if (const char* given = std::getenv("STARLING_PYTHON"); given != nullptr && *given != '\0') return given;
  // PYTHON/lib/python3.X/site-packages/torch/lib
  fs::path root = loaded_folder("libc10.so");
  for (int up = 0; up < 5; ++up) root = root.parent_path();
  std::error_code none;
  return fs::exists(root / "bin/python", none) ? (root / "bin/python").string() : "python3";
}

int become_script(const std::vector<std::string>& arguments) {
  std::vector<std::string> words{python(), "-B", script().string()};
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
