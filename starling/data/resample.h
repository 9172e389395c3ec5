// Resizes a box of an image by the triangle filter with antialiasing, as Pillow and torchvision do
// under the name "bilinear".
//
//   out(i) = Sum_x w_x in(x) / Sum_x w_x,   w_x = max(0, 1 - |x + 1/2 - c_i| / max(s, 1))
//
// s is the number of pixels of the image for one of the result, and c_i the centre of pixel i of
// the result, in pixels of the image.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace starling {

// The filter along one side.
class Taps {
 public:
  // From the box [begin, begin + length) of the image to `size` pixels. Only pixels low..high-1 are
  // used. `mirror`: the last pixel of the result comes first.
  void set(double begin, double length, int size, int low, int high, bool mirror);

  struct Tap {
    int first;      // pixel of the image
    int count;      // at least 1
    std::size_t w;  // weight(w) is the first one's
  };
  const Tap& at(int i) const { return taps_[static_cast<std::size_t>(i)]; }
  float weight(std::size_t w) const { return weights_[w]; }
  int size() const { return static_cast<int>(taps_.size()); }
  // The pixels that the result depends on: first()..end()-1.
  int first() const { return first_; }
  int end() const { return end_; }

 private:
  std::vector<Tap> taps_;
  std::vector<float> weights_;
  int first_ = 0, end_ = 0;
};

// A part of an image, in four bytes for each pixel: red, green, blue, nothing. Its top left pixel
// is that at (x, y) of the image.
struct Pixels {
  const std::uint8_t* bytes;
  int x, y, width;
};
// Writes rows.size() x columns.size() pixels of three bytes. `row` is working memory.
void resample(const Pixels& image, const Taps& columns, const Taps& rows, std::vector<float>& row,
              std::uint8_t* out);

}  // namespace starling
