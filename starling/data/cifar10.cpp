#include "starling/data/cifar10.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/random.h"

namespace starling {

Cifar10Images::Cifar10Images(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    files_.push_back(std::make_unique<const MappedFile>(path));
    const std::span<const std::byte> bytes = files_.back()->bytes();
    if (bytes.size() % kRecord != 0)
      throw Error(
          fmt::format("{}: has {} bytes, which are no whole images of {} bytes: the file breaks off, or is "
                      "none of CIFAR-10's binary version",
                      path, bytes.size(), kRecord));
    for (std::size_t place = 0; place < bytes.size(); place += kRecord) {
      if (const int label = static_cast<int>(bytes[place]); label >= kClasses)
        throw Error(
            fmt::format("{}: offset {}: label {}, allowed are 0 to {}", path, place, label, kClasses - 1));
    }
    first_.push_back(first_.back() + static_cast<std::int64_t>(bytes.size()) / kRecord);
  }
}

std::span<const std::byte> Cifar10Images::record(std::int64_t image) const {
  const auto file = std::ranges::upper_bound(first_, image) - first_.begin() - 1;
  const auto i = static_cast<std::size_t>(file);
  return files_[i]->bytes().subspan(static_cast<std::size_t>((image - first_[i]) * kRecord), kRecord);
}

int Cifar10Images::label(std::int64_t image) const { return static_cast<int>(record(image)[0]); }

std::span<const std::byte> Cifar10Images::pixels(std::int64_t image) const {
  return record(image).subspan(1);
}

std::vector<std::string> cifar10_files(const std::string& folder, bool train) {
  if (!train) return {folder + "/test_batch.bin"};
  std::vector<std::string> paths;
  for (int i = 1; i <= 5; ++i) paths.push_back(fmt::format("{}/data_batch_{}.bin", folder, i));
  return paths;
}

void find_cifar10(const std::string& folder) {
  for (const bool train : {true, false}) {
    for (const std::string& path : cifar10_files(folder, train)) {
      std::error_code error;
      if (!std::filesystem::exists(path, error))
        throw Error(fmt::format("{}: {}; it is in cifar-10-binary.tar.gz, CIFAR-10's binary version", path,
                                error ? error.message() : "not there"));
    }
  }
}

void shift_image(std::span<const std::byte> pixels, const RandomShifts& shifts, std::uint64_t seed,
                 std::span<std::uint8_t> to) {
  constexpr std::int64_t kSide = Cifar10Images::kSide;
  const auto draw = [&](std::uint64_t which, int places) {
    return static_cast<std::int64_t>(random_bits({seed, which}) % static_cast<std::uint64_t>(places));
  };
  const std::int64_t right = draw(0, 2 * shifts.pad + 1) - shifts.pad;
  const std::int64_t down = draw(1, 2 * shifts.pad + 1) - shifts.pad;
  const bool mirror = draw(2, 2) != 0 && shifts.flip;
  // Pixel (x, y) is that at (x + right, y + down), or black.
  std::ranges::fill(to, std::uint8_t{0});
  for (std::int64_t row = 0; row < 3 * kSide; ++row) {
    const std::int64_t y = row % kSide + down;
    if (y < 0 || y >= kSide) continue;
    const std::span from = pixels.subspan(static_cast<std::size_t>((row / kSide * kSide + y) * kSide), kSide);
    const std::span out = to.subspan(static_cast<std::size_t>(row * kSide), kSide);
    for (std::int64_t x = std::max<std::int64_t>(0, -right); x < std::min(kSide, kSide - right); ++x) {
      out[static_cast<std::size_t>(mirror ? kSide - 1 - x : x)] =
          static_cast<std::uint8_t>(from[static_cast<std::size_t>(x + right)]);
    }
  }
}

}  // namespace starling
