// Products of a matrix X of floats, which is contiguous and on the CPU, with vectors. The bits do
// not depend on the number of threads.
#pragma once

#include <span>

#include <ATen/core/Tensor.h>

namespace starling {

void multiply(const at::Tensor& matrix, const float* v, float* to);             // to <- X v
void multiply_transposed(const at::Tensor& matrix, const float* v, float* to);  // to <- X^T v
void add_outer(const at::Tensor& matrix, const float* a, const float* b);       // X <- X + a b^T
// v <- v / |v|. Returns false, and changes nothing, if it has no direction.
bool normalise(std::span<float> v);

}  // namespace starling
