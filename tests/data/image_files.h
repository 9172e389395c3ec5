// JPEGs and shards of images for tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <jpeglib.h>

#include "starling/core/crc32c.h"
#include "tests/folder.h"

namespace starling::testing_data {

struct JpegFile {
  int width = 64, height = 48;
  int seed = 0;        // other pixels
  int components = 3;  // 1: grey, 4: CMYK
  int h = 2, v = 2;    // colour is stored at 1/h of the columns and 1/v of the rows
  bool progressive = false;
  int quality = 95;
};

inline std::uint8_t pixel_of(const JpegFile& file, int x, int y, int c) {
  const double wave = std::sin(0.11 * x + c + file.seed) * std::cos(0.17 * y - 2 * c) +
                      0.3 * std::sin(1.3 * x + 0.9 * y + file.seed);
  return static_cast<std::uint8_t>(127 + 95 * wave);
}

inline std::string jpeg_bytes(const JpegFile& file) {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};  // a failure ends the process
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&jpeg, &bytes, &size);
  jpeg.image_width = static_cast<JDIMENSION>(file.width);
  jpeg.image_height = static_cast<JDIMENSION>(file.height);
  jpeg.input_components = file.components;
  jpeg.in_color_space = file.components == 1 ? JCS_GRAYSCALE : file.components == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, file.quality, TRUE);
  jpeg.comp_info[0].h_samp_factor = file.h;
  jpeg.comp_info[0].v_samp_factor = file.v;
  if (file.progressive) jpeg_simple_progression(&jpeg);
  jpeg_start_compress(&jpeg, TRUE);
  std::vector<std::uint8_t> row(static_cast<std::size_t>(file.width * file.components));
  for (int y = 0; y < file.height; ++y) {
    for (int x = 0; x < file.width; ++x) {
      for (int c = 0; c < file.components; ++c)
        row[static_cast<std::size_t>(x * file.components + c)] = pixel_of(file, x, y, c);
    }
    JSAMPROW rows = row.data();
    jpeg_write_scanlines(&jpeg, &rows, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  std::string out(reinterpret_cast<const char*>(bytes), size);
  std::free(bytes);
  return out;
}

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

template <class T>
std::string low_first(T value) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof(T); ++i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

struct LabelledJpeg {
  std::uint32_t label;
  std::string jpeg;
};

// As docs/data.md describes it.
inline std::string shard_bytes(const std::vector<LabelledJpeg>& images,
                               const std::vector<std::string>& classes, std::uint32_t number = 0,
                               std::uint32_t shards = 1) {
  std::string data, index;
  for (const auto& [label, jpeg] : images) {
    index += low_first<std::uint64_t>(64 + data.size()) + low_first(static_cast<std::uint32_t>(jpeg.size())) +
             low_first(label) + low_first(crc32c(bytes_of(jpeg))) + std::string(4, '\0');
    data += jpeg;
  }
  std::string names;
  for (const std::string& name : classes) names += name + '\0';
  const std::uint64_t index_at = 64 + data.size(), names_at = index_at + index.size();
  std::string header = "STARIMG1";
  for (const std::uint64_t value :
       {std::uint64_t{images.size()}, names_at + names.size(), index_at, names_at})
    header += low_first(value);
  header += low_first(number) + low_first(shards) + low_first<std::uint64_t>(classes.size()) +
            low_first(crc32c(bytes_of(index + names)));
  header += low_first(crc32c(bytes_of(header)));
  return header + data + index + names;
}

}  // namespace starling::testing_data
