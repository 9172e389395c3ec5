#include "starling/data/packed_shard.h"

#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include "starling/core/crc32c.h"
#include "starling/core/error.h"
#include "starling/core/little_endian.h"
#include "starling/core/text.h"

namespace starling {

namespace {

using Bytes = std::span<const std::byte>;

constexpr std::string_view kMagic = "STARIMG1", kSwappedMagic = "1GMIRATS";
constexpr std::size_t kHeaderSize = 64, kEntrySize = 24;

// Places in the header.
constexpr std::size_t kImagesAt = 8, kEndAt = 16, kIndexAt = 24, kNamesAt = 32, kShardAt = 40, kShardsAt = 44,
                      kClassesAt = 48, kIndexSumAt = 56, kHeaderSumAt = 60;
// Places in an entry of the index.
constexpr std::size_t kOffsetAt = 0, kSizeAt = 8, kLabelAt = 12, kSumAt = 16;

}  // namespace

PackedShard::PackedShard(const std::string& path) : path_(path), file_(path) {
  const Bytes all = file_.bytes();
  const auto fail = [&](const std::string& why) { throw Error(fmt::format("{}: {}", path, why)); };
  const auto begins = [&](std::string_view with) {
    return all.size() >= with.size() && std::memcmp(all.data(), with.data(), with.size()) == 0;
  };
  if (begins(kSwappedMagic))
    fail("its numbers have the high byte first: pack the images again, with the low byte first");
  if (!begins(kMagic)) fail("is no shard of images: `starling pack images` makes them");
  if (all.size() < kHeaderSize) fail(fmt::format("breaks off in its header: it has {} bytes", all.size()));
  const Bytes header = all.first(kHeaderSize);
  if (crc32c(header.first(kHeaderSumAt)) != take<std::uint32_t>(header, kHeaderSumAt))
    fail("its header is damaged, or the file was never finished");
  const auto end = take<std::uint64_t>(header, kEndAt);
  if (all.size() < end) fail(fmt::format("breaks off: it has {} bytes of {}", all.size(), end));
  if (all.size() > end) fail(fmt::format("has {} bytes, but its header says {}", all.size(), end));

  const auto images = take<std::uint64_t>(header, kImagesAt);
  const auto index = take<std::uint64_t>(header, kIndexAt);
  const auto names = take<std::uint64_t>(header, kNamesAt);
  const auto classes = take<std::uint64_t>(header, kClassesAt);
  number_ = take<std::uint32_t>(header, kShardAt);
  shards_ = take<std::uint32_t>(header, kShardsAt);
  if (index < kHeaderSize || index > names || names > end || (names - index) % kEntrySize != 0 ||
      images != (names - index) / kEntrySize)
    fail(fmt::format("{} images do not fit an index from {} to {} in {} bytes", images, index, names, end));
  if (number_ >= shards_) fail(fmt::format("says that it is shard {} of {}", number_, shards_));
  if (crc32c(all.subspan(index)) != take<std::uint32_t>(header, kIndexSumAt)) fail("its index is damaged");
  size_ = static_cast<std::int64_t>(images);
  index_ = all.subspan(index, names - index);

  const Bytes tail = all.subspan(names);
  const std::string_view text(reinterpret_cast<const char*>(tail.data()), tail.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t stop = text.find('\0', at);
    if (stop == std::string_view::npos) fail("the name of its last class breaks off");
    classes_.emplace_back(text.substr(at, stop - at));
    at = stop + 1;
  }
  if (classes_.size() != classes)
    fail(fmt::format("has the names of {} classes, but its header says {}", classes_.size(), classes));
  for (std::int64_t i = 0; i < size_; ++i) {
    const auto offset = take<std::uint64_t>(entry(i), kOffsetAt);
    const std::uint64_t size = take<std::uint32_t>(entry(i), kSizeAt);
    if (offset < kHeaderSize || offset > index || size > index - offset)
      fail(fmt::format("image {} lies at {} with {} bytes, outside of {} to {}", i, offset, size, kHeaderSize,
                       index));
    if (label(i) >= std::ssize(classes_))
      fail(fmt::format("image {} has the label {}, but there are {} classes", i, label(i), classes_.size()));
  }
}

Bytes PackedShard::entry(std::int64_t image) const {
  return index_.subspan(static_cast<std::size_t>(image) * kEntrySize, kEntrySize);
}

std::int64_t PackedShard::label(std::int64_t image) const {
  return take<std::uint32_t>(entry(image), kLabelAt);
}

Bytes PackedShard::jpeg(std::int64_t image) const {
  const Bytes mine = entry(image);
  const Bytes bytes =
      file_.bytes().subspan(take<std::uint64_t>(mine, kOffsetAt), take<std::uint32_t>(mine, kSizeAt));
  if (crc32c(bytes) != take<std::uint32_t>(mine, kSumAt)) throw Error("its checksum is wrong");
  return bytes;
}

std::string PackedShard::name(std::int64_t image) const {
  return fmt::format("{}: image {} ({})", path_, image,
                     short_of(classes_[static_cast<std::size_t>(label(image))]));
}

}  // namespace starling
