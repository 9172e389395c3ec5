#include "starling/core/file.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "starling/core/error.h"

namespace starling {
namespace {

constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;  // the kernel takes at most 2 GB per call

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw Error(fmt::format("{}: cannot be {}: {}", path, what, std::strerror(errno)));
}

}  // namespace

std::size_t write_once(int file, std::string_view bytes, std::optional<off_t> at) {
  const std::size_t most = std::min(bytes.size(), kMostAtOnce);
  ssize_t done = 0;
  do {
    done = at ? ::pwrite(file, bytes.data(), most, *at) : ::write(file, bytes.data(), most);
  } while (done < 0 && errno == EINTR);
  if (done < 0) return 0;
  if (static_cast<std::size_t>(done) < most) errno = ENOSPC;
  return static_cast<std::size_t>(done);
}

void refuse(const std::string& path, std::uint64_t offset, const std::string& reason) {
  throw Error(fmt::format("{}: offset {}: {}", path, offset, reason));
}

File::File(std::string path, int flags, mode_t mode) : path_(std::move(path)) {
  // O_NONBLOCK: a pipe with this name must not block us.
  file_ = open(path_.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, mode);
  if (file_ < 0 && errno == ELOOP) throw Error(path_ + ": is a symbolic link, not a file");
  if (file_ < 0) fail(path_, "opened");
}

File File::to_read(const std::string& path) {
  File file(path, O_RDONLY);
  if (!S_ISREG(file.examine().st_mode)) throw Error(path + ": is not a regular file");
  return file;
}

File File::of(int descriptor, std::string name) {
  File file;
  file.path_ = std::move(name);
  file.file_ = descriptor;
  file.examine();
  return file;
}

// Sets the size.
struct stat File::examine() {
  struct stat about{};
  if (fstat(file_, &about) != 0) fail(path_, "examined");
  size_ = static_cast<std::uint64_t>(about.st_size);
  return about;
}

File File::to_write(const std::string& path, mode_t mode) {
  return {path, O_WRONLY | O_CREAT | O_TRUNC, mode};
}

File::~File() {
  if (file_ >= 0) close(file_);
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)), size_(other.size_) {}

void File::read(std::uint64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t got = pread(file_, to.data(), std::min(to.size(), kMostAtOnce), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path_, "read");
    if (got == 0) refuse(path_, offset, fmt::format("the file ends, {} bytes too early", to.size()));
    offset += static_cast<std::uint64_t>(got);
    to = to.subspan(static_cast<std::size_t>(got));
  }
}

void File::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t done = write_once(file_, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    if (done == 0) fail(path_, "written");
    size_ += done;
    bytes = bytes.subspan(done);
  }
}

void File::sync() {
  if (fsync(file_) != 0) fail(path_, "brought to the disk");
}

std::string read_text(const std::string& path, std::uint64_t most) {
  const File file = File::to_read(path);
  if (file.size() > most) {
    refuse(path, most, fmt::format("the file has {} bytes; at most {} are read", file.size(), most));
  }
  std::string text(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void write_text(const std::string& path, const std::string& text) {
  const std::string draft = path + ".tmp";
  File file = File::to_write(draft);
  try {
    file.write(std::as_bytes(std::span(text)));
    file.sync();
    if (std::rename(draft.c_str(), path.c_str()) != 0) fail(path, "put in place");
  } catch (const Error&) {
    unlink(draft.c_str());
    throw;
  }
}

void sync_folder(const std::string& path) {
  const int folder = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) fail(path, "opened");
  const int result = fsync(folder);
  close(folder);
  if (result != 0) fail(path, "brought to the disk");
}

}  // namespace starling
