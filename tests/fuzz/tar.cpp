// Tar archives of images (data/tar.h, data/tar_shard.h). The first byte chooses: 0 as they are; else
// the sums of all headers become right first.
#include <cstdio>

#include "starling/data/tar_shard.h"
#include "tests/fuzz/target.h"

namespace starling::fuzz {
namespace {

constexpr std::size_t kBlock = 512, kSumAt = 148, kMagicAt = 257;

std::string with_sums(std::string archive) {
  for (std::size_t at = 0; at + kBlock <= archive.size(); at += kBlock) {
    if (archive.compare(at + kMagicAt, 5, "ustar") != 0) continue;
    archive.replace(at + kSumAt, 8, "        ");
    unsigned sum = 0;
    for (std::size_t i = 0; i < kBlock; ++i) sum += static_cast<unsigned char>(archive[at + i]);
    char digits[8];
    std::snprintf(digits, sizeof digits, "%06o", sum);
    archive.replace(at + kSumAt, 6, digits, 6);
  }
  return archive;
}

}  // namespace

void read(std::string_view bytes) {
  if (bytes.empty()) return;
  const bool mends = bytes[0] != 0;
  bytes.remove_prefix(1);
  const TemporaryFile file(mends ? with_sums(std::string(bytes)) : std::string(bytes), ".tar");
  accepted([&] {
    const TarShard shard(file.path());
    check(shard.size() > 0, "an archive without images");
    for (std::int64_t i = 0; i < shard.size(); ++i) {
      check(0 <= shard.label(i) && shard.label(i) < TarShard::kMostLabels, "a label out of range");
      unsigned sum = 0;
      for (const std::byte b : shard.jpeg(i)) sum += std::to_integer<unsigned>(b);
      check(sum <= 255 * shard.jpeg(i).size(), "bytes outside of the file");
      check(!shard.name(i).empty(), "an image without a name");
    }
  });
}

}  // namespace starling::fuzz
