// Images (data/packed_shard.h, data/jpeg.h). The first byte chooses: 0 a shard; 1 a shard whose
// checksums become right first; else a JPEG, of which the next five bytes choose a view.
#include <vector>

#include "starling/core/crc32c.h"
#include "starling/data/jpeg.h"
#include "starling/data/packed_shard.h"
#include "tests/fuzz/target.h"

namespace starling::fuzz {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

void decode(JpegDecoder& decoder, std::span<const std::byte> jpeg, const std::string& choice) {
  const ImageSize image = decoder.open(jpeg);
  check(image.width > 0 && image.height > 0, "an image without pixels");
  // libjpeg takes long for many pixels, however few bytes there are.
  if (std::int64_t{image.width} * image.height > 1 << 20) return;
  const int size = 1 + static_cast<unsigned char>(choice[0]) % 64;
  ImageView view = centre_view(image, size + static_cast<unsigned char>(choice[1]) % 64, size);
  if (choice[2] % 2 != 0) view = random_view(image, {}, crc32c(bytes_of(choice)));
  std::vector<std::uint8_t> out(static_cast<std::size_t>(size * size) * 3 + 1, 77);
  decoder.decode(view, size, out.data());
  check(out.back() == 77, "more pixels than there is room for");
}

// The sums of index and header, as far as the header places an index.
std::string with_sums(std::string shard) {
  if (shard.size() < 64) return shard;
  const auto put = [&](std::size_t at, std::uint32_t sum) {
    for (std::size_t i = 0; i < 4; ++i) shard[at + i] = static_cast<char>(sum >> (8 * i));
  };
  std::uint64_t index = 0;
  for (std::size_t i = 0; i < 8; ++i)
    index |= std::uint64_t{static_cast<unsigned char>(shard[24 + i])} << (8 * i);
  if (index <= shard.size()) put(56, crc32c(bytes_of(std::string_view(shard).substr(index))));
  put(60, crc32c(bytes_of(std::string_view(shard).substr(0, 60))));
  return shard;
}

}  // namespace

void read(std::string_view bytes) {
  if (bytes.size() < 6) return;
  static JpegDecoder decoder;
  const char kind = bytes[0];
  const std::string choice(bytes.substr(1, 5));
  if (kind != 0 && kind != 1) {
    accepted([&] { decode(decoder, bytes_of(bytes.substr(6)), choice); });
    return;
  }
  bytes.remove_prefix(1);
  const TemporaryFile file(kind == 0 ? std::string(bytes) : with_sums(std::string(bytes)), ".shard");
  accepted([&] {
    const PackedShard shard(file.path());
    for (std::int64_t i = 0; i < shard.size(); ++i) {
      check(0 <= shard.label(i) && shard.label(i) < std::ssize(shard.classes()), "a label without a class");
      accepted([&] { decode(decoder, shard.jpeg(i), choice); });
    }
  });
}

}  // namespace starling::fuzz
