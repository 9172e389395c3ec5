#include "starling/data/jpeg.h"

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/data/image_files.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using namespace testing_data;
using testing::HasSubstr;

std::vector<std::uint8_t> decoded(std::string_view jpeg, const ImageView& view, int size) {
  JpegDecoder decoder;
  decoder.open(bytes_of(jpeg));
  std::vector<std::uint8_t> out(static_cast<std::size_t>(size * size) * 3);
  decoder.decode(view, size, out.data());
  return out;
}

struct Whole {
  int width, height;
  std::vector<std::uint8_t> pixels;
  double at(int x, int y, int c) const { return pixels[static_cast<std::size_t>((y * width + x) * 3 + c)]; }
};

// All of the image, at so many eighths of its size, by nothing but libjpeg.
Whole whole(std::string_view bytes, int eighths) {
  jpeg_decompress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&jpeg);
  jpeg_mem_src(&jpeg, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  jpeg_read_header(&jpeg, TRUE);
  jpeg.scale_num = static_cast<unsigned>(eighths);
  jpeg.scale_denom = 8;
  jpeg.out_color_space = JCS_RGB;
  jpeg_start_decompress(&jpeg);
  Whole out{static_cast<int>(jpeg.output_width), static_cast<int>(jpeg.output_height), {}};
  out.pixels.resize(std::size_t{jpeg.output_width} * jpeg.output_height * 3);
  while (jpeg.output_scanline < jpeg.output_height) {
    JSAMPROW row = out.pixels.data() + std::size_t{jpeg.output_scanline} * jpeg.output_width * 3;
    jpeg_read_scanlines(&jpeg, &row, 1);
  }
  jpeg_destroy_decompress(&jpeg);
  return out;
}

// The equation of resample.h for one pixel of the result.
double resized(const Whole& image, const ImageView& view, double scale, int size, int i, int j, int c) {
  const double step_x = view.width * scale / size, step_y = view.height * scale / size;
  const double centre_x = view.x * scale + (i + 0.5) * step_x, centre_y = view.y * scale + (j + 0.5) * step_y;
  const auto weight = [](double distance, double step) {
    return std::max(0.0, 1 - std::abs(distance) / std::max(step, 1.0));
  };
  const auto inside = [&](int x, double begin, double length) {
    return !view.cut || (x + 1 > begin * scale && x < (begin + length) * scale);
  };
  double sum = 0, weights = 0;
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x) {
      if (!inside(x, view.x, view.width) || !inside(y, view.y, view.height)) continue;
      const double w = weight(x + 0.5 - centre_x, step_x) * weight(y + 0.5 - centre_y, step_y);
      sum += w * image.at(x, y, c);
      weights += w;
    }
  }
  return sum / weights;
}

void expect_resized(const std::string& jpeg, const ImageView& view, int size) {
  int eighths = 8;
  for (const int less : {4, 2, 1}) {
    if (std::min(view.width, view.height) * less / 8 >= size) eighths = less;
  }
  SCOPED_TRACE(
      fmt::format("{} {} {} {} to {} at {}/8", view.x, view.y, view.width, view.height, size, eighths));
  const Whole all = whole(jpeg, eighths);
  const std::vector<std::uint8_t> out = decoded(jpeg, view, size);
  double worst = 0;
  for (int j = 0; j < size; ++j) {
    for (int i = 0; i < size; ++i) {
      for (int c = 0; c < 3; ++c) {
        const double expected = resized(all, view, eighths / 8.0, size, view.flip ? size - 1 - i : i, j, c);
        worst = std::max(worst, std::abs(expected - out[static_cast<std::size_t>((j * size + i) * 3 + c)]));
      }
    }
  }
  EXPECT_LE(worst, 0.502);  // rounded
}

const std::vector<JpegFile>& kinds() {
  static const std::vector<JpegFile> kAll{
      {.width = 131, .height = 97, .h = 2, .v = 2},
      {.width = 97, .height = 131, .h = 2, .v = 1},
      {.width = 128, .height = 96, .h = 1, .v = 1},
      {.width = 100, .height = 90, .h = 1, .v = 2},
      {.width = 131, .height = 97, .h = 2, .v = 2, .progressive = true},
      {.width = 90, .height = 70, .components = 1, .h = 1, .v = 1},
  };
  return kAll;
}

TEST(Jpeg, AViewIsThatPartOfTheImageResized) {
  std::mt19937 random(5);
  for (const JpegFile& file : kinds()) {
    SCOPED_TRACE(fmt::format("{}x{} h{} v{}", file.width, file.height, file.h, file.v));
    const std::string jpeg = jpeg_bytes(file);
    for (int trial = 0; trial < 12; ++trial) {
      const auto below = [&](int end) { return static_cast<int>(random() % static_cast<unsigned>(end)); };
      const int width = 1 + below(file.width), height = 1 + below(file.height);
      const ImageView view{.x = static_cast<double>(below(file.width - width + 1)),
                           .y = static_cast<double>(below(file.height - height + 1)),
                           .width = static_cast<double>(width),
                           .height = static_cast<double>(height),
                           .cut = true,
                           .flip = trial % 2 == 1};
      expect_resized(jpeg, view, 1 + below(20));
    }
    for (const int size : {8, 16, 40})
      expect_resized(jpeg, centre_view({file.width, file.height}, size * 8 / 7, size), size);
  }
}

TEST(Jpeg, AViewOfTheSameSizeIsWhatLibjpegDecodes) {
  const std::string jpeg = jpeg_bytes({.width = 48, .height = 48});
  EXPECT_EQ(decoded(jpeg, {.width = 48, .height = 48, .cut = true}, 48), whole(jpeg, 8).pixels);
}

TEST(Jpeg, ADecoderServesOneImageAfterTheOther) {
  JpegDecoder decoder;
  std::vector<std::uint8_t> out(16 * 16 * 3);
  const ImageView view{.x = 3, .y = 5, .width = 40, .height = 30, .cut = true};
  const std::string good = jpeg_bytes({}), bad = good.substr(0, good.size() / 4);
  const std::vector<std::uint8_t> expected = decoded(good, view, 16);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(decoder.open(bytes_of(good)).width, 64);
    decoder.decode(view, 16, out.data());
    EXPECT_EQ(out, expected);
    EXPECT_THROW(
        {
          decoder.open(bytes_of(bad));
          decoder.decode(view, 16, out.data());
        },
        Error);
    decoder.open(bytes_of(good));  // and is not decoded
  }
}

TEST(Jpeg, RefusesBrokenOnes) {
  const auto refused = [](std::string_view jpeg) {
    return refusal<Error>([&] { decoded(jpeg, {.width = 64, .height = 48, .cut = true}, 16); });
  };
  const std::string good = jpeg_bytes({}), progressive = jpeg_bytes({.progressive = true});
  EXPECT_EQ(refused(good), "accepted");
  EXPECT_EQ(refused(""), "broken JPEG: Empty input file");
  EXPECT_EQ(refused("GIF89a"), "broken JPEG: Not a JPEG file: starts with 0x47 0x49");
  for (std::size_t size = 1; size + 8 < good.size(); size += 7)
    EXPECT_THAT(refused(good.substr(0, size)), HasSubstr("JPEG: ")) << size;
  for (std::size_t size = 1; size + 8 < progressive.size(); size += 7)
    EXPECT_THAT(refused(progressive.substr(0, size)), HasSubstr("JPEG: ")) << size;
  EXPECT_EQ(refused(jpeg_bytes({.components = 4, .h = 1, .v = 1})),
            "JPEG of other colours: wants grey, YCbCr or RGB");

  std::string huge = good;
  const std::size_t frame = huge.find("\xff\xc0");
  huge.replace(frame + 5, 4, "\xff\x00\xff\x00", 4);
  EXPECT_EQ(refused(huge), "JPEG of 65280x65280 pixels: at most 67108864 are allowed");

  // A scan that is there again and again.
  const std::size_t scan = progressive.rfind("\xff\xda");
  std::string endless = progressive.substr(0, progressive.size() - 2);
  for (int i = 0; i < JpegDecoder::kMostScans; ++i)
    endless += progressive.substr(scan, progressive.size() - 2 - scan);
  EXPECT_THAT(refused(endless + "\xff\xd9"), HasSubstr("broken JPEG: "));
}

// Other programs leave bytes behind a JPEG, which is no damage.
TEST(Jpeg, IgnoresBytesBehindTheEnd) {
  const ImageView view{.width = 64, .height = 48, .cut = true};
  const std::string good = jpeg_bytes({});
  EXPECT_EQ(decoded(good + "something else", view, 16), decoded(good, view, 16));
}

}  // namespace
}  // namespace starling
