// Images with labels, in files that are mapped into memory (mapped_file.h): shards that `starling
// pack images` writes (packed_shard.h), or webdataset's tar archives (tar_shard.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace starling {

// One file. Its images are 0 .. size()-1.
class ImageShard {
 public:
  virtual ~ImageShard() = default;

  virtual std::int64_t size() const = 0;
  virtual std::int64_t label(std::int64_t image) const = 0;
  // Throws Error if there is a checksum, and it is wrong.
  virtual std::span<const std::byte> jpeg(std::int64_t image) const = 0;
  virtual std::string name(std::int64_t image) const = 0;  // for messages
};

// All shards of a split.
class ImageShards {
 public:
  // Reads SPLIT-00000.shard and the others in the folder, or SPLIT-0.tar and so on, with any number
  // of zeros before the number. Throws Error if one is missing, if there are both kinds, if there
  // is no image, as PackedShard and TarShard do, or if shards are not of one packing.
  ImageShards(const std::string& folder, const std::string& split);

  std::int64_t size() const { return first_.back(); }
  // The names of the labels 0, 1, ..; empty: they have none, in tar archives.
  const std::vector<std::string>& classes() const { return classes_; }
  std::int64_t highest_label() const;
  std::int64_t label(std::int64_t image) const;
  std::span<const std::byte> jpeg(std::int64_t image) const;  // as ImageShard::jpeg
  std::string name(std::int64_t image) const;                 // as ImageShard::name

 private:
  struct Place {
    const ImageShard& shard;
    std::int64_t image;
  };
  Place place(std::int64_t image) const;
  void add(std::unique_ptr<const ImageShard> shard);

  std::vector<std::unique_ptr<const ImageShard>> shards_;
  std::vector<std::int64_t> first_{0};  // image of each shard; the last one is the number of all
  std::vector<std::string> classes_;
};

// Throws Error if the folder has no shard of the split, or both kinds. Reads none of them.
void find_image_shards(const std::string& folder, const std::string& split);

}  // namespace starling
