// A file in memory, for code that reads and writes files.
#pragma once

#include <cstddef>
#include <span>

#include "starling/core/file.h"

namespace starling {

class MemoryFile {
 public:
  MemoryFile();  // empty. Throws Error
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  // Another end of it, from its beginning. Throws Error.
  File open() const;
  // Makes it so long. Throws Error.
  void resize(std::size_t bytes);
  // Its content, as long as it is now. It stays there until the next call of resize(), or of
  // bytes() after it has become longer. Throws Error.
  std::span<std::byte> bytes();

 private:
  void unmap();
  int file_;
  std::span<std::byte> mapped_{};
};

}  // namespace starling
