#include "starling/data/image_view.h"

#include <algorithm>
#include <cmath>

#include "starling/core/random.h"

namespace starling {

namespace {

constexpr double kNarrowest = 3.0 / 4, kWidest = 4.0 / 3;

ImageView box(int x, int y, int width, int height, bool flip) {
  return {.x = static_cast<double>(x),
          .y = static_cast<double>(y),
          .width = static_cast<double>(width),
          .height = static_cast<double>(height),
          .cut = true,
          .flip = flip};
}

int rounded(double value) { return static_cast<int>(std::lround(value)); }

}  // namespace

ImageView random_view(ImageSize image, const RandomViews& options, std::uint64_t seed) {
  std::uint64_t draws = 0;
  const auto between = [&](double low, double high) {
    return low + (high - low) * uniform_of(random_bits({seed, draws++}));
  };
  const auto below = [&](int end) { return static_cast<int>(between(0, end)); };
  const bool flip = between(0, 1) < 0.5 && options.flip;
  const double area = static_cast<double>(image.width) * image.height;
  for (int trial = 0; trial < 10; ++trial) {
    const double wanted = area * between(options.least_area, 1);
    const double ratio = std::exp(between(std::log(kNarrowest), std::log(kWidest)));
    const int width = rounded(std::sqrt(wanted * ratio)), height = rounded(std::sqrt(wanted / ratio));
    if (width < 1 || width > image.width || height < 1 || height > image.height) continue;
    const int x = below(image.width - width + 1), y = below(image.height - height + 1);
    return box(x, y, width, height, flip);
  }
  // The middle of an image that is longer than any box.
  const int width = std::min(image.width, std::max(1, rounded(image.height * kWidest)));
  const int height = std::min(image.height, std::max(1, rounded(image.width / kNarrowest)));
  return box((image.width - width) / 2, (image.height - height) / 2, width, height, flip);
}

ImageView centre_view(ImageSize image, int shorter, int size) {
  const int least = std::min(image.width, image.height);
  const auto resized = [&](int side) {  // rounded down, as torchvision does
    return static_cast<int>(std::int64_t{side} * shorter / least);
  };
  // In pixels of the image.
  const double wide = static_cast<double>(image.width) / resized(image.width);
  const double high = static_cast<double>(image.height) / resized(image.height);
  const auto begin = [&](int side) {  // rounded half to even, as Python does
    return std::nearbyint((resized(side) - size) / 2.0);
  };
  return {.x = begin(image.width) * wide,
          .y = begin(image.height) * high,
          .width = size * wide,
          .height = size * high};
}

}  // namespace starling
