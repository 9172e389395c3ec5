// Reads a tar archive that lies in memory: POSIX ustar and pax, and GNU's own format, as tar and
// Python's tarfile write them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace starling {

struct TarFile {
  std::string name;
  std::span<const std::byte> bytes;  // in the archive
};

class TarReader {
 public:
  // `path` names the archive in messages. The bytes must stay until the last call of next().
  TarReader(std::string path, std::span<const std::byte> archive);

  // The next file; nothing at the end of the archive. Folders are left out. Throws Error, with the
  // path, if this is no tar archive, if it breaks off or goes on behind its end, if a header is
  // damaged, or if a member is neither a file nor a folder, such as a link.
  std::optional<TarFile> next();

 private:
  // The next member's name and size, from headers of their own in front of its header.
  struct Said {
    std::optional<std::string> name;
    std::optional<std::uint64_t> size;
  };
  [[noreturn]] void fail(const std::string& why) const;
  void check_header(std::span<const std::byte> header) const;
  void check_end() const;
  Said read_pax(std::string_view records) const;

  const std::string path_;
  const std::span<const std::byte> archive_;
  std::size_t place_ = 0;  // of the next header
};

}  // namespace starling
