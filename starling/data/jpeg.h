// Decodes JPEG images by libjpeg-turbo, and no more of them than is seen: unseen rows and columns
// are skipped, and an image that is shown at half its size or less is decoded at 1/2, 1/4 or 1/8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "starling/data/image_view.h"

namespace starling {

class JpegDecoder {
 public:
  static constexpr std::int64_t kMostPixels = 1 << 26;
  static constexpr int kMostScans = 100;  // of a progressive image

  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  // Reads the header. The bytes must stay until decode() is done. Throws Error if this is no JPEG,
  // if its colours are other than grey and RGB, or if it has more than kMostPixels.
  ImageSize open(std::span<const std::byte> jpeg);
  // Writes the view of the opened image as size x size pixels of three bytes: red, green, blue. The
  // view is within the image. Once for each open(). Throws Error if the data is damaged as far as
  // it was decoded.
  void decode(const ImageView& view, int size, std::uint8_t* out);

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace starling
