// The part of an image that a network sees, as torchvision's transforms choose it.
#pragma once

#include <cstdint>

namespace starling {

struct ImageSize {
  int width = 0;
  int height = 0;
};

// A box in an image, in pixels. It is resized to a square.
struct ImageView {
  double x = 0, y = 0, width = 0, height = 0;
  bool cut = false;   // pixels outside of the box have no influence on those at its edge
  bool flip = false;  // left to right
};

struct RandomViews {
  double least_area = 0.08;  // of the box, as a share of the image
  bool flip = true;          // every second one, by chance
};

// RandomResizedCrop and RandomHorizontalFlip: a box of random area and place, whose width is
// between 3/4 and 4/3 of its height. Depends on `seed` alone.
ImageView random_view(ImageSize image, const RandomViews& options, std::uint64_t seed);

// Resize and CenterCrop: the middle square of `size` pixels, after the shorter side of the image
// was resized to `shorter` pixels, which is at least `size`.
ImageView centre_view(ImageSize image, int shorter, int size);

}  // namespace starling
