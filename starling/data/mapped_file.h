// A file that is mapped into memory: its pages are read when they are touched, and shared by all
// processes of a host. It must not be shortened meanwhile.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace starling {

class MappedFile {
 public:
  // Throws Error, with the path, if the file is missing, not a regular file, or empty.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace starling
