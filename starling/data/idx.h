// The idx format of the MNIST family: two zero bytes, a type byte (8: unsigned bytes), the number
// of dimensions, each dimension as a big-endian 32-bit number, then the data. The files are always
// compressed with gzip.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace starling {

struct Idx {
  std::vector<std::int64_t> shape;
  std::vector<std::uint8_t> data;
};

// Reads a .gz file of unsigned bytes with `dimensions` dimensions to its end, and checks its
// checksum. Throws Error, with file, offset and reason, if it is truncated, damaged, of another
// format or larger than 1 GB.
Idx read_idx(const std::string& path, int dimensions);

}  // namespace starling
