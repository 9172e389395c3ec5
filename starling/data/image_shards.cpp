#include "starling/data/image_shards.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>

#include "starling/core/crc32c.h"
#include "starling/core/error.h"
#include "starling/core/little_endian.h"
#include "starling/core/text.h"

namespace starling {

namespace {

using Bytes = std::span<const std::byte>;

constexpr std::string_view kMagic = "STARIMG1", kSwappedMagic = "1GMIRATS";
constexpr std::size_t kHeader = 64, kEntry = 24;

// Places in the header.
constexpr std::size_t kImagesAt = 8, kEndAt = 16, kIndexAt = 24, kNamesAt = 32, kShardAt = 40, kShardsAt = 44,
                      kClassesAt = 48, kIndexSumAt = 56, kHeaderSumAt = 60;
// Places in an entry of the index.
constexpr std::size_t kOffsetAt = 0, kSizeAt = 8, kLabelAt = 12, kSumAt = 16;

std::string shard_path(const std::string& folder, const std::string& split, std::size_t number) {
  return fmt::format("{}/{}-{:05}.shard", folder, split, number);
}

}  // namespace

ImageShard::ImageShard(const std::string& path) : path_(path), file_(path) {
  const Bytes all = file_.bytes();
  const auto fail = [&](const std::string& why) { throw Error(fmt::format("{}: {}", path, why)); };
  const auto begins = [&](std::string_view with) {
    return all.size() >= with.size() && std::memcmp(all.data(), with.data(), with.size()) == 0;
  };
  if (begins(kSwappedMagic))
    fail("its numbers have the high byte first: pack the images again, with the low byte first");
  if (!begins(kMagic)) fail("is no shard of images: `starling pack images` makes them");
  if (all.size() < kHeader) fail(fmt::format("breaks off in its header: it has {} bytes", all.size()));
  const Bytes header = all.first(kHeader);
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
  if (index < kHeader || index > names || names > end || (names - index) % kEntry != 0 ||
      images != (names - index) / kEntry)
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
    if (offset < kHeader || offset > index || size > index - offset)
      fail(fmt::format("image {} lies at {} with {} bytes, outside of {} to {}", i, offset, size, kHeader,
                       index));
    if (label(i) >= std::ssize(classes_))
      fail(fmt::format("image {} has the label {}, but there are {} classes", i, label(i), classes_.size()));
  }
}

Bytes ImageShard::entry(std::int64_t image) const {
  return index_.subspan(static_cast<std::size_t>(image) * kEntry, kEntry);
}

std::int64_t ImageShard::label(std::int64_t image) const {
  return take<std::uint32_t>(entry(image), kLabelAt);
}

Bytes ImageShard::jpeg(std::int64_t image) const {
  const Bytes mine = entry(image);
  const Bytes bytes =
      file_.bytes().subspan(take<std::uint64_t>(mine, kOffsetAt), take<std::uint32_t>(mine, kSizeAt));
  if (crc32c(bytes) != take<std::uint32_t>(mine, kSumAt)) throw Error("its checksum is wrong");
  return bytes;
}

ImageShards::ImageShards(const std::string& folder, const std::string& split) : first_{0} {
  std::int64_t shards = 1;
  for (std::int64_t i = 0; i < shards; ++i) {
    const std::string path = shard_path(folder, split, static_cast<std::size_t>(i));
    auto shard = std::make_unique<const ImageShard>(path);
    if (i == 0) shards = shard->shards();
    if (shard->number() != i || shard->shards() != shards)
      throw Error(fmt::format("{}: says that it is shard {} of {}, and should be {} of {}", path,
                              shard->number(), shard->shards(), i, shards));
    if (i > 0 && shard->classes() != classes())
      throw Error(fmt::format("{}: has other classes than {}", path, shards_.front()->path()));
    first_.push_back(first_.back() + shard->size());
    shards_.push_back(std::move(shard));
  }
}

ImageShards::Place ImageShards::place(std::int64_t image) const {
  const auto after = std::upper_bound(first_.begin(), first_.end() - 1, image);
  const auto shard = static_cast<std::size_t>(after - first_.begin() - 1);
  return {*shards_[shard], image - first_[shard]};
}

std::int64_t ImageShards::label(std::int64_t image) const {
  const auto [shard, i] = place(image);
  return shard.label(i);
}

Bytes ImageShards::jpeg(std::int64_t image) const {
  const auto [shard, i] = place(image);
  return shard.jpeg(i);
}

std::string ImageShards::name(std::int64_t image) const {
  const auto [shard, i] = place(image);
  const auto label = static_cast<std::size_t>(shard.label(i));
  return fmt::format("{}: image {} ({})", shard.path(), i, short_of(classes()[label]));
}

void find_image_shards(const std::string& folder, const std::string& split) {
  const std::string path = shard_path(folder, split, 0);
  std::error_code none;
  if (!std::filesystem::exists(path, none))
    throw Error(
        fmt::format("{}: not there; `starling pack images` makes it, data.dir names the folder", path));
}

}  // namespace starling
