// Images with labels in shards: files that `starling pack images` writes and that are mapped into
// memory (mapped_file.h). docs/data.md describes the format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "starling/data/mapped_file.h"

namespace starling {

// One file. Throws Error, with the path, if it is no shard, breaks off, is damaged in its header or
// index, or has its numbers the other way round.
class ImageShard {
 public:
  explicit ImageShard(const std::string& path);

  const std::string& path() const { return path_; }
  std::int64_t size() const { return size_; }
  std::int64_t number() const { return number_; }  // 0, 1, .. of shards()
  std::int64_t shards() const { return shards_; }
  const std::vector<std::string>& classes() const { return classes_; }

  // The images are 0 .. size()-1.
  std::int64_t label(std::int64_t image) const;
  // Throws Error if the checksum is wrong.
  std::span<const std::byte> jpeg(std::int64_t image) const;

 private:
  std::span<const std::byte> entry(std::int64_t image) const;

  const std::string path_;
  const MappedFile file_;
  std::int64_t size_ = 0, number_ = 0, shards_ = 0;
  std::vector<std::string> classes_;
  std::span<const std::byte> index_;
};

// All shards of a split.
class ImageShards {
 public:
  // Reads SPLIT-00000.shard and the others in the folder. Throws Error if one is missing, as
  // ImageShard does, or if they are not of one packing.
  ImageShards(const std::string& folder, const std::string& split);

  std::int64_t size() const { return first_.back(); }
  const std::vector<std::string>& classes() const { return shards_.front()->classes(); }
  std::int64_t label(std::int64_t image) const;
  std::span<const std::byte> jpeg(std::int64_t image) const;  // as ImageShard::jpeg
  // "out/train-00000.shard: image 7 ("cat")", for messages.
  std::string name(std::int64_t image) const;

 private:
  struct Place {
    const ImageShard& shard;
    std::int64_t image;
  };
  Place place(std::int64_t image) const;

  std::vector<std::unique_ptr<const ImageShard>> shards_;
  std::vector<std::int64_t> first_;  // image of each shard; the last one is the number of all
};

// Throws as ImageShards if the first shard of the split is missing. Reads nothing.
void find_image_shards(const std::string& folder, const std::string& split);

}  // namespace starling
