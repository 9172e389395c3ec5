// An IDX file: after a first byte below 128 its unpacked bytes, else the file itself.
#include "starling/data/idx.h"

#include <zlib.h>

#include "tests/fuzz/target.h"

namespace starling::fuzz {
namespace {

std::string packed(std::string_view bytes) {
  z_stream stream{};
  check(deflateInit2(&stream, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK, "zlib");
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  check(deflate(&stream, Z_FINISH) == Z_STREAM_END, "zlib");
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

}  // namespace

void read(std::string_view bytes) {
  if (bytes.empty()) return;
  const bool plain = static_cast<unsigned char>(bytes.front()) < 128;
  bytes.remove_prefix(1);
  const TemporaryFile file(plain ? packed(bytes) : std::string(bytes), ".gz");
  for (const int dimensions : {1, 3}) {
    accepted([&] {
      const Idx idx = read_idx(file.path(), dimensions);
      std::int64_t size = 1;
      for (const std::int64_t extent : idx.shape) size *= extent;
      check(std::ssize(idx.data) == size && std::ssize(idx.shape) == dimensions,
            "another size than the header's");
    });
  }
}

}  // namespace starling::fuzz
