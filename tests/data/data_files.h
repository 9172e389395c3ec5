// Small data files for tests.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <zlib.h>

#include "tests/folder.h"

namespace starling::testing_data {

// As data/tokens.h reads them.
inline std::string token_bytes(const std::vector<std::int64_t>& tokens) {
  std::string bytes;
  for (const std::int64_t token : tokens) bytes += {static_cast<char>(token), static_cast<char>(token >> 8)};
  return bytes;
}

struct Pair {
  std::vector<std::int64_t> source, target;
};

inline std::string number_bytes(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> 8 * i);
  return text;
}

// As data/pairs.h reads them.
inline std::string pair_bytes(const std::vector<Pair>& pairs) {
  std::string places = number_bytes(0, 8), tokens;
  for (const Pair& pair : pairs) {
    for (const auto& sentence : {pair.source, pair.target}) {
      tokens += token_bytes(sentence);
      places += number_bytes(tokens.size() / 2, 8);
    }
  }
  return "PAIR" + number_bytes(1, 4) + number_bytes(pairs.size(), 8) + places + tokens;
}

struct Cifar10Record {
  int label = 0;
  int seed = 0;  // of the pixels
};

inline std::uint8_t cifar10_pixel(int seed, std::int64_t place) {
  return static_cast<std::uint8_t>(place * 7 + place / 1024 * 11 + place / 32 * 3 + seed * 31);
}

// As data/cifar10.h reads them.
inline std::string cifar10_bytes(const std::vector<Cifar10Record>& records) {
  std::string bytes;
  for (const Cifar10Record& record : records) {
    bytes += static_cast<char>(record.label);
    for (std::int64_t i = 0; i < 3072; ++i) bytes += static_cast<char>(cifar10_pixel(record.seed, i));
  }
  return bytes;
}

inline void write_gzip(const std::string& path, std::string_view bytes) {
  const gzFile file = gzopen(path.c_str(), "wb6");
  ASSERT_NE(file, nullptr);
  ASSERT_EQ(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())), static_cast<int>(bytes.size()));
  ASSERT_EQ(gzclose(file), Z_OK);
}

inline std::string idx_bytes(std::initializer_list<std::uint32_t> shape,
                             const std::vector<std::uint8_t>& data) {
  std::string bytes{'\0', '\0', '\x08', static_cast<char>(shape.size())};
  for (const std::uint32_t extent : shape) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(extent >> shift);
  }
  bytes.append(data.begin(), data.end());
  return bytes;
}

}  // namespace starling::testing_data
