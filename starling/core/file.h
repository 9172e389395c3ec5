// One open file. Every failure is an Error that names the file and, if a place in it matters, the
// byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <sys/stat.h>
#include <sys/types.h>

namespace starling {

class File {
 public:
  // Opens regular files only, and follows no symbolic link.
  static File to_read(const std::string& path);
  // Creates the file, with this mode less the umask, or empties an existing one.
  static File to_write(const std::string& path, mode_t mode = 0644);
  // Takes over an open file, whose name is only for messages.
  static File of(int descriptor, std::string name);
  ~File();
  File(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }                     // when opened, or so far written
  void read(std::uint64_t offset, std::span<std::byte> to) const;  // reads all of `to`
  void write(std::span<const std::byte> bytes);
  void sync();  // brings the data to the disk, not only to the operating system

 private:
  File() = default;
  struct stat examine();
  File(std::string path, int flags, mode_t mode = 0);
  std::string path_;
  int file_ = -1;
  std::uint64_t size_ = 0;
};

// One write() of at most 1 GB to an open file, or pwrite() at a place of it. A signal does not end
// it. Returns the number of bytes that were written; if not all were, errno says why.
std::size_t write_once(int file, std::string_view bytes, std::optional<off_t> at = {});

// Throws Error "path: offset N: reason".
[[noreturn]] void refuse(const std::string& path, std::uint64_t offset, const std::string& reason);

// Reads a whole small file. Throws Error if it is larger than `most`.
std::string read_text(const std::string& path, std::uint64_t most);
// Writes and syncs under another name, then renames to `path`, which therefore holds the old text
// or the new, never half of it.
void write_text(const std::string& path, const std::string& text);

void sync_folder(const std::string& path);  // syncs the names in it

}  // namespace starling
