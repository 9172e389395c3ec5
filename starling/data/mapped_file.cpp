#include "starling/data/mapped_file.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "starling/core/error.h"

namespace starling {

MappedFile::MappedFile(const std::string& path) {
  const auto fail = [&](const std::string& why) { throw Error(fmt::format("{}: {}", path, why)); };
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail(fmt::format("cannot be opened: {}", std::strerror(errno)));
  struct stat status{};
  const bool known = ::fstat(file, &status) == 0;
  const auto size = static_cast<std::size_t>(status.st_size);
  void* start = MAP_FAILED;
  if (known && S_ISREG(status.st_mode) && size > 0)
    start = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
  const int error = errno;
  ::close(file);
  if (known && !S_ISREG(status.st_mode)) fail("is not a file");
  if (known && size == 0) fail("is empty");
  if (start == MAP_FAILED) fail(fmt::format("cannot be mapped: {}", std::strerror(error)));
  bytes_ = {static_cast<const std::byte*>(start), size};
}

MappedFile::~MappedFile() { ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }

}  // namespace starling
