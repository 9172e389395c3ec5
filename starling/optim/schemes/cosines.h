// The orthonormal cosine transform (DCT-II) of a block's values, tile after tile:
//
//   Y = C_h X C_w^T     of a tile X of h x w values;  X = C_h^T Y C_w
//   C_n[k][i]           sqrt((k = 0 ? 1 : 2) / n) cos(pi (2 i + 1) k / (2 n))
//
// A matrix is the outermost dimension in memory of a parameter by all others. Its tiles have the
// largest divisors of its sizes, up to 64, as sides. A vector has tiles of 64 values and a rest. So
// has a matrix whose tiles would be smaller.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "starling/optim/blocks.h"

namespace starling {

// Consecutive values of a block as a matrix, cut into tiles of h x w.
struct Tiles {
  std::int64_t begin = 0, rows = 1, columns = 0, h = 1, w = 1;
  std::int64_t values() const { return rows * columns; }
};

// Every parameter of two or more dimensions lies in one block.
std::vector<Tiles> tiles_of(const Block& block);
// `v` has the block's length. The coefficients of a tile follow each other, by rows; so do tiles.
at::Tensor cosine_transform(const Block& block, const at::Tensor& v);
at::Tensor inverse_cosine_transform(const Block& block, const at::Tensor& coefficients);

}  // namespace starling
