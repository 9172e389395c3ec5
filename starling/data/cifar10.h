// CIFAR-10 (Krizhevsky 2009): 50,000 training and 10,000 test images of 32x32 coloured pixels in 10
// classes, in its "binary version". A file is records of 3073 bytes: the label, then all red, all
// green and all blue pixels, the top row first. It has no header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "starling/data/mapped_file.h"

namespace starling {

// Some files of records, mapped into memory (mapped_file.h).
class Cifar10Images {
 public:
  static constexpr std::int64_t kSide = 32;
  static constexpr std::int64_t kPixels = 3 * kSide * kSide, kRecord = 1 + kPixels;  // bytes
  static constexpr int kClasses = 10;

  // Throws Error, with the path, if a file cannot be mapped, has no whole number of records, or has
  // a label of another class.
  explicit Cifar10Images(const std::vector<std::string>& paths);

  std::int64_t size() const { return first_.back(); }
  int label(std::int64_t image) const;
  std::span<const std::byte> pixels(std::int64_t image) const;  // [3, 32, 32]

 private:
  std::span<const std::byte> record(std::int64_t image) const;

  std::vector<std::unique_ptr<const MappedFile>> files_;
  std::vector<std::int64_t> first_{0};  // image of each file; the last one is the number of all
};

// data_batch_1.bin to data_batch_5.bin, or test_batch.bin, in the folder.
std::vector<std::string> cifar10_files(const std::string& folder, bool train);
// Throws Error if a file is missing. Reads nothing.
void find_cifar10(const std::string& folder);

struct RandomShifts {
  int pad = 4;       // black pixels around the image, within which it moves
  bool flip = true;  // left to right, every second image, by chance
};

// Writes an image of [3, 32, 32], moved by -pad to pad pixels along each side, and perhaps
// mirrored: RandomCrop(32, padding=pad) and RandomHorizontalFlip. Depends on `seed` alone.
void shift_image(std::span<const std::byte> pixels, const RandomShifts& shifts, std::uint64_t seed,
                 std::span<std::uint8_t> to);

}  // namespace starling
