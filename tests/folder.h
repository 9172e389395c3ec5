// A temporary folder, the files in it, and a disk that is full.
#pragma once

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <sys/resource.h>

#include "starling/core/error.h"

namespace starling {

// It is removed with this object.
struct Folder {
  Folder() {
    std::string name = std::filesystem::temp_directory_path() / "starling-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw Error("no temporary folder");
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return path + "/" + name; }
  std::string path;
};

inline std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void spill(const std::string& path, const std::string& text) {
  // Some file systems sync a file at once that is emptied and filled.
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << text;
}

// No file may grow beyond `bytes` while it lives.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

}  // namespace starling
