// A shard of images in webdataset's layout: a tar archive of samples. A sample is the files whose
// names are equal up to the first dot behind the last slash, one behind the other: NAME.jpg or
// NAME.jpeg, and its label in NAME.cls, in decimal digits. Other files are left out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "starling/data/image_shards.h"
#include "starling/data/mapped_file.h"

namespace starling {

class TarShard final : public ImageShard {
 public:
  // Reads the headers and the labels. Throws Error, with the path, as TarReader does, if a sample
  // has an image or a label alone, or two of one kind, if a label is no number below kMostLabels,
  // or if there is no image.
  explicit TarShard(const std::string& path);
  static constexpr std::int64_t kMostLabels = 1 << 20;

  std::int64_t size() const override { return std::ssize(images_); }
  std::int64_t label(std::int64_t image) const override { return at(image).label; }
  std::span<const std::byte> jpeg(std::int64_t image) const override { return at(image).jpeg; }
  // out/train-000000.tar: "n01440764_10026.jpg"
  std::string name(std::int64_t image) const override;

 private:
  struct Image {
    std::string name;
    std::span<const std::byte> jpeg;
    std::int64_t label;
  };
  const Image& at(std::int64_t image) const { return images_[static_cast<std::size_t>(image)]; }

  const std::string path_;
  const MappedFile file_;
  std::vector<Image> images_;
};

}  // namespace starling
