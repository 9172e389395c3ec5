// The form of PowerGossip's wire block:
//
//   the values of the parameters that are no matrices
//   then a slot for each neighbour of the round, by rank
//
//   slot   a checksum of two values, which says which v the products are of; the products
//
// A product is X v or X^T v of a matrix X, and edges alternate between the two by turns. Some
// matrices begin with rows, others with columns, which makes the turns of a block about equally
// long. There is room for the longer one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "starling/optim/blocks.h"
#include "starling/topology/schedules.h"

namespace starling {

struct ProductForm {
  static constexpr std::size_t kChecksum = 2;  // values

  // A parameter of two or more dimensions: the first one by all others. Edges count their turns
  // from 0 on, modulo 2.
  struct Matrix {
    std::size_t segment;
    std::int64_t rows, columns;
    int turn_of_rows;               // in which X v is sent
    std::array<std::size_t, 2> at;  // by turn: where its product begins, among all

    bool is_of_rows(int turn) const { return turn == turn_of_rows; }
    std::size_t length(int turn) const { return static_cast<std::size_t>(is_of_rows(turn) ? rows : columns); }
    template <class Float>
    std::span<Float> product(std::span<Float> all, int turn) const {
      return all.subspan(at[static_cast<std::size_t>(turn)], length(turn));
    }
    // The parameter's values, which lie as in its memory. A copy, if its indices have another
    // order. So the bits do not depend on the order.
    at::Tensor of(const at::Tensor& values, const at::Tensor& parameter) const {
      return values.as_strided(parameter.sizes(), parameter.strides()).reshape({rows, columns}).contiguous();
    }
  };

  explicit ProductForm(const Block& block);

  std::size_t slot() const { return matrices.empty() ? 0 : kChecksum + products; }
  std::size_t size(std::size_t slots) const { return values + slots * slot(); }

  std::vector<std::size_t> others;  // segments that are no matrices, or have one row or column
  std::vector<Matrix> matrices;
  std::size_t values = 0;    // of the others
  std::size_t products = 0;  // values of the products of the longer turn
};

// The slots of all wire blocks: as many as the worker with most neighbours needs.
std::size_t slots_of(const Schedule& schedule);

}  // namespace starling
