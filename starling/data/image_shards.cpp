#include "starling/data/image_shards.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/exists.h"
#include "starling/core/text.h"
#include "starling/data/packed_shard.h"
#include "starling/data/tar_shard.h"

namespace starling {

namespace {

std::string shard_path(const std::string& folder, const std::string& split, std::int64_t number) {
  return fmt::format("{}/{}-{:05}.shard", folder, split, number);
}

// The archives SPLIT-NUMBER.tar, by number.
std::vector<std::string> find_tars(const std::string& folder, const std::string& split) {
  std::map<std::uint32_t, std::string> found;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const std::string file = entry.path().filename();
    std::string_view digits = file;
    if (!digits.starts_with(split + "-") || !digits.ends_with(".tar")) continue;
    digits = digits.substr(split.size() + 1, digits.size() - split.size() - 5);
    const auto number = parse_number<std::uint32_t>(digits);
    if (!number) continue;
    const auto [place, is_new] = found.emplace(*number, fmt::format("{}/{}", folder, file));
    if (!is_new) throw Error(fmt::format("{}/{} and {} have the same number", folder, file, place->second));
  }
  std::vector<std::string> paths;
  for (auto& [number, path] : found) {
    if (number != paths.size())
      throw Error(fmt::format("{}/{}-*.tar: number {} is missing", folder, split, paths.size()));
    paths.push_back(std::move(path));
  }
  if (const std::string shard = shard_path(folder, split, 0); !paths.empty() && exists(shard))
    throw Error(fmt::format("{} and {} are both there: remove one kind", paths[0], shard));
  return paths;
}

}  // namespace

ImageShards::ImageShards(const std::string& folder, const std::string& split) {
  if (const auto tars = find_tars(folder, split); !tars.empty()) {
    for (const std::string& path : tars) add(std::make_unique<const TarShard>(path));
    return;
  }
  std::int64_t shards = 1;
  for (std::int64_t i = 0; i < shards; ++i) {
    const std::string path = shard_path(folder, split, i);
    auto shard = std::make_unique<const PackedShard>(path);
    if (i == 0) {
      shards = shard->shards();
      classes_ = shard->classes();
    }
    if (shard->number() != i || shard->shards() != shards)
      throw Error(fmt::format("{}: says that it is shard {} of {}, and should be {} of {}", path,
                              shard->number(), shard->shards(), i, shards));
    if (shard->classes() != classes_)
      throw Error(fmt::format("{}: has other classes than {}", path, shard_path(folder, split, 0)));
    add(std::move(shard));
  }
  if (size() == 0) throw Error(fmt::format("{}/{}-*.shard: there is no image in them", folder, split));
}

void ImageShards::add(std::unique_ptr<const ImageShard> shard) {
  first_.push_back(first_.back() + shard->size());
  shards_.push_back(std::move(shard));
}

ImageShards::Place ImageShards::place(std::int64_t image) const {
  const auto after = std::upper_bound(first_.begin(), first_.end() - 1, image);
  const auto shard = static_cast<std::size_t>(after - first_.begin() - 1);
  return {*shards_[shard], image - first_[shard]};
}

std::int64_t ImageShards::highest_label() const {
  std::int64_t highest = -1;
  for (std::int64_t i = 0; i < size(); ++i) highest = std::max(highest, label(i));
  return highest;
}

std::int64_t ImageShards::label(std::int64_t image) const {
  const auto [shard, i] = place(image);
  return shard.label(i);
}

std::span<const std::byte> ImageShards::jpeg(std::int64_t image) const {
  const auto [shard, i] = place(image);
  return shard.jpeg(i);
}

std::string ImageShards::name(std::int64_t image) const {
  const auto [shard, i] = place(image);
  return shard.name(i);
}

void find_image_shards(const std::string& folder, const std::string& split) {
  if (!find_tars(folder, split).empty()) return;
  const std::string path = shard_path(folder, split, 0);
  if (!exists(path))
    throw Error(fmt::format(
        "{}: not there, and no {}-0.tar; `starling pack images` makes shards, data.dir names the folder",
        path, split));
}

}  // namespace starling
