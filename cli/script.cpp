#include "cli/script.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <fmt/format.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "starling/core/descriptor.h"
#include "starling/core/error.h"
#include "starling/core/file.h"
#include "starling/core/library.h"
#include "starling/core/process.h"

namespace starling::cli {

namespace {

namespace fs = std::filesystem;

// Beside the program's folder.
fs::path path_of(const Script& script) {
  const fs::path found =
      fs::read_symlink("/proc/self/exe").parent_path().parent_path() / (script.name + ".py");
  std::error_code none;
  if (!fs::exists(found, none))
    throw Error(fmt::format("{} needs the script {}", script.name, found.string()));
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

class CommandLine {
 public:
  CommandLine(const Script& script, const std::vector<std::string>& arguments)
      : script_(script), words_{python(), "-B", path_of(script).string()} {
    words_.insert(words_.end(), arguments.begin(), arguments.end());
    pointers_ = pointers_to(words_);
  }
  char** pointers() { return pointers_.data(); }
  [[noreturn]] void refuse(int error) const {
    throw Error(
        fmt::format("{} needs Python 3 with {}, but \"{}\" cannot be started: {}; STARLING_PYTHON names "
                    "another one",
                    script_.name, script_.packages, words_[0], std::strerror(error)));
  }

 private:
  const Script script_;
  std::vector<std::string> words_;
  std::vector<char*> pointers_;
};

[[noreturn]] void refuse(const char* what) { throw Error(fmt::format("{}: {}", what, std::strerror(errno))); }

// A file in memory, so that the script never waits for this process.
Descriptor file_of(const std::string& text) {
  Descriptor file(memfd_create("starling", MFD_CLOEXEC));
  if (file.get() < 0) refuse("memfd_create");
  for (std::size_t done = 0; done < text.size();) {
    const std::size_t n = write_once(file.get(), std::string_view(text).substr(done));
    if (n == 0) refuse("write");
    done += n;
  }
  if (lseek(file.get(), 0, SEEK_SET) != 0) refuse("lseek");
  return file;
}

std::string text_of(const Descriptor& file) {
  const off_t size = lseek(file.get(), 0, SEEK_END);
  if (size < 0) refuse("lseek");
  std::string text(static_cast<std::size_t>(size), '\0');
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t n = pread(file.get(), text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (n == 0 || (n < 0 && errno != EINTR)) refuse("read");
    if (n > 0) done += static_cast<std::size_t>(n);
  }
  return text;
}

}  // namespace

void become(const Script& script, const std::vector<std::string>& arguments) {
  CommandLine line(script, arguments);
  ::execvp(line.pointers()[0], line.pointers());
  line.refuse(errno);
}

std::string output_of(const Script& script, const std::vector<std::string>& arguments,
                      const std::string& input) {
  CommandLine line(script, arguments);
  const Descriptor in = file_of(input), out = file_of("");
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, in.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, out.get(), STDOUT_FILENO);
  pid_t child = 0;
  const int error = posix_spawnp(&child, line.pointers()[0], &files, nullptr, line.pointers(), environ);
  posix_spawn_file_actions_destroy(&files);
  if (error != 0) line.refuse(error);
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) refuse("waitpid");
  }
  const std::string failed = fmt::format("{} {} failed", script.name, arguments[0]);
  if (exit_code_of(status) == 2) throw UsageError(failed);  // its input is wrong
  if (status != 0) throw Error(failed);
  return text_of(out);
}

}  // namespace starling::cli
