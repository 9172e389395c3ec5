// A shard of images that `starling pack images` writes. docs/data.md describes the format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "starling/data/image_shards.h"
#include "starling/data/mapped_file.h"

namespace starling {

class PackedShard final : public ImageShard {
 public:
  // Throws Error, with the path, if the file is no shard, breaks off, is damaged in its header or
  // index, or has its numbers the other way round.
  explicit PackedShard(const std::string& path);

  std::int64_t number() const { return number_; }  // 0, 1, .. of shards()
  std::int64_t shards() const { return shards_; }
  const std::vector<std::string>& classes() const { return classes_; }

  std::int64_t size() const override { return size_; }
  std::int64_t label(std::int64_t image) const override;
  std::span<const std::byte> jpeg(std::int64_t image) const override;
  // out/train-00000.shard: image 7 ("cat")
  std::string name(std::int64_t image) const override;

 private:
  std::span<const std::byte> entry(std::int64_t image) const;

  const std::string path_;
  const MappedFile file_;
  std::int64_t size_ = 0, number_ = 0, shards_ = 0;
  std::vector<std::string> classes_;
  std::span<const std::byte> index_;
};

}  // namespace starling
