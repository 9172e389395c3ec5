#include "starling/checkpoint/memory_file.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "starling/core/error.h"

namespace starling {
namespace {

[[noreturn]] void fail(const char* what) {
  throw Error(fmt::format("a file in memory: cannot {}: {}", what, std::strerror(errno)));
}

}  // namespace

MemoryFile::MemoryFile() : file_(memfd_create("starling", MFD_CLOEXEC)) {
  if (file_ < 0) fail("make it");
}

MemoryFile::~MemoryFile() {
  unmap();
  close(file_);
}

File MemoryFile::open() const {
  // /proc gives it a place of its own in the file, which dup() would not.
  const int end = ::open(fmt::format("/proc/self/fd/{}", file_).c_str(), O_RDWR | O_CLOEXEC);
  if (end < 0) fail("open it");
  return File::of(end, "a file in memory");
}

void MemoryFile::unmap() {
  if (!mapped_.empty()) munmap(mapped_.data(), mapped_.size());
  mapped_ = {};
}

void MemoryFile::resize(std::size_t bytes) {
  unmap();
  if (ftruncate(file_, static_cast<off_t>(bytes)) != 0) fail("size it");
}

std::span<std::byte> MemoryFile::bytes() {
  struct stat status{};
  if (fstat(file_, &status) != 0) fail("read its size");
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == mapped_.size()) return mapped_;
  unmap();
  if (size == 0) return {};
  void* const at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (at == MAP_FAILED) fail("map it");
  return mapped_ = {static_cast<std::byte*>(at), size};
}

}  // namespace starling
