// A disk that is slow or breaks, for a process that loads this library first (LD_PRELOAD): fsync()
// of a worker's file of a checkpoint lasts until the file SLOW_DISK_GATE is there, in the worker of
// rank SLOW_DISK_RANK or in all. Without a gate it fails. With SLOW_DISK_NO_EXCHANGE two files are
// not exchanged, as on NFS.
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include <dlfcn.h>
#include <unistd.h>

namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace

extern "C" int fsync(int file) {
  std::error_code none;
  const std::string path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(file), none);
  const std::string rank = variable("SLOW_DISK_RANK");
  if (path.find(".tmp/worker-") != std::string::npos && path.ends_with(".safetensors") &&
      (rank.empty() || rank == variable("RANK"))) {
    const std::string gate = variable("SLOW_DISK_GATE");
    if (gate.empty()) {
      errno = EIO;
      return -1;
    }
    while (!std::filesystem::exists(gate, none)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  static const auto real = reinterpret_cast<int (*)(int)>(dlsym(RTLD_NEXT, "fsync"));
  return real(file);
}

extern "C" int renameat2(int from_folder, const char* from, int to_folder, const char* to,
                         unsigned flags) noexcept {
  if ((flags & RENAME_EXCHANGE) != 0 && !variable("SLOW_DISK_NO_EXCHANGE").empty()) {
    errno = EINVAL;
    return -1;
  }
  static const auto real = reinterpret_cast<decltype(&renameat2)>(dlsym(RTLD_NEXT, "renameat2"));
  return real(from_folder, from, to_folder, to, flags);
}
