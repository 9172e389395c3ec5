#include "cli/script.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>
#include <unistd.h>

#include "starling/core/error.h"
#include "starling/core/library.h"

namespace starling::cli {

namespace {

namespace fs = std::filesystem;

// Beside the program's folder.
fs::path script(const std::string& name) {
  const fs::path found = fs::read_symlink("/proc/self/exe").parent_path().parent_path() / (name + ".py");
  std::error_code none;
  if (!fs::exists(found, none)) throw Error(fmt::format("{} needs the script {}", name, found.string()));
  return found;
}

std::string python() {
  if (const char* given = std::getenv("STARLING_PYTHON"); given != nullptr && *given != '\0') return given;
  // PYTHON/lib/python3.X/site-packages/torch/lib
  fs::path root = loaded_folder("libc10.so");
  for (int up = 0; up < 5; ++up) root = root.parent_path();
  std::error_code none;
  return fs::exists(root / "bin/python", none) ? (root / "bin/python").string() : "python3";
}

}  // namespace

void become_script(const std::string& name, const std::string& packages,
                   const std::vector<std::string>& arguments) {
  std::vector<std::string> words{python(), "-B", script(name).string()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execvp(pointers[0], pointers.data());
  throw Error(
      fmt::format("{} needs Python 3 with {}, but \"{}\" cannot be started: {}; STARLING_PYTHON names "
                  "another one",
                  name, packages, words[0], std::strerror(errno)));
}

}  // namespace starling::cli
