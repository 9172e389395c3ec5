#include "starling/data/idx.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <zlib.h>

#include "starling/core/error.h"

namespace starling {

namespace {

constexpr std::int64_t kMaxBytes = std::int64_t{1} << 30;

class GzipFile {
 public:
  explicit GzipFile(const std::string& path) : path_(path), file_(gzopen(path.c_str(), "rb")) {
    if (!file_) throw Error(fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
    gzbuffer(file_, 256 << 10);
  }
  ~GzipFile() { gzclose_r(file_); }
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  // Reads `size` bytes, fewer only at the end of the data.
  std::size_t read(std::uint8_t* to, std::size_t size) {
    std::size_t done = 0;
    while (done < size) {
      const int got =
          gzread(file_, to + done, static_cast<unsigned>(std::min<std::size_t>(size - done, 1 << 24)));
      if (got < 0) {
        int code = 0;
        const char* reason = gzerror(file_, &code);
        fail(code == Z_ERRNO ? std::strerror(errno) : reason);
      }
      if (got == 0) {
        // zlib reports a truncated file only after it has returned all data.
        int code = 0;
        gzerror(file_, &code);
        if (code == Z_BUF_ERROR) fail("the file breaks off");
        break;
      }
      done += static_cast<std::size_t>(got);
    }
    if (gzdirect(file_)) fail("not a gzip file");
    offset_ += static_cast<std::int64_t>(done);
    return done;
  }

  [[noreturn]] void fail(const std::string& reason) const {
    throw Error(fmt::format("{}: offset {} (unpacked): {}", path_, offset_, reason));
  }

 private:
  std::string path_;
  gzFile file_;
  std::int64_t offset_ = 0;
};

}  // namespace

Idx read_idx(const std::string& path, int dimensions) {
  GzipFile file(path);
  const auto header = [&](std::uint8_t (&word)[4]) {
    if (file.read(word, 4) != 4) file.fail("the header breaks off");
  };
  std::uint8_t word[4];
  header(word);
  if (word[0] != 0 || word[1] != 0 || word[2] != 8 || word[3] != dimensions) {
    file.fail(fmt::format(
        "starts with {:02x} {:02x} {:02x} {:02x}, not 00 00 08 {:02x} as an idx file of bytes with {} "
        "dimensions does",
        word[0], word[1], word[2], word[3], dimensions, dimensions));
  }
  Idx idx;
  std::int64_t size = 1;
  for (int i = 0; i < dimensions; ++i) {
    header(word);
    const std::int64_t extent = std::int64_t{word[0]} << 24 | word[1] << 16 | word[2] << 8 | word[3];
    if (extent < 1 || extent > kMaxBytes / size) {
      file.fail(fmt::format("dimension {} is {}; allowed are 1 to {} bytes in all", i, extent, kMaxBytes));
    }
    idx.shape.push_back(extent);
    size *= extent;
  }
  // The vector grows with the data, so a wrong size in the header costs no memory.
  constexpr std::int64_t kReadAtOnce = 4 << 20;
  for (std::int64_t got = 0; got < size;) {
    const std::int64_t part = std::min(kReadAtOnce, size - got);
    idx.data.resize(got + part);
    const auto n = static_cast<std::int64_t>(file.read(idx.data.data() + got, part));
    got += n;
    if (n < part) file.fail(fmt::format("the data breaks off after {} of {} bytes", got, size));
  }
  if (file.read(word, 1) != 0)
    file.fail(fmt::format("more data than the {} bytes that the header tells of", size));
  return idx;
}

}  // namespace starling
