// One open file of a checkpoint. Every failure is an Error that names the file; where a place in it matters, the byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace starling {

class File {
 public:
  // Only a regular file, and not through a symbolic link.
  static File to_read(const std::string& path);
  // Made, or emptied where it is there.
  static File to_write(const std::string& path);
  ~File();
  File(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }                     // when it was opened, or written so far
  void read(std::uint64_t offset, std::span<std::byte> to) const;  // all of it
  void write(std::span<const std::byte> bytes);
  void sync();  // on the disk, not only with the operating system

 private:
  File(std::string path, int flags);
  std::string path_;
  int file_ = -1;
  std::uint64_t size_ = 0;
};

// Throws Error "path: offset N: reason".
[[noreturn]] void refuse(const std::string& path, std::uint64_t offset, const std::string& reason);

// A whole small file. Throws Error where it is larger than `most`.
std::string read_text(const std::string& path, std::uint64_t most);
// Written and synced under another name, then moved to `path`: there is the old text or the new, never half of it.
void write_text(const std::string& path, const std::string& text);

void sync_folder(const std::string& path);  // the names in it

}  // namespace starling
