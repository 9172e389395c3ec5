#include "starling/optim/schemes/matrix_products.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include <ATen/Parallel.h>

namespace starling {
namespace {

constexpr std::int64_t kMatrixGrain = 1 << 15;  // values of a matrix per thread, at least

std::int64_t grain(std::int64_t values) { return std::max<std::int64_t>(1, kMatrixGrain / values); }

double dot(const float* a, const float* b, std::int64_t n) {
  std::array<double, 8> lanes{};  // so that the compiler adds several numbers at once
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (std::int64_t l = 0; l < 8; ++l)
      lanes[static_cast<std::size_t>(l)] += double{a[i + l]} * double{b[i + l]};
  }
  for (; i < n; ++i) lanes[0] += double{a[i]} * double{b[i]};
  return std::accumulate(lanes.begin(), lanes.end(), 0.0);
}

}  // namespace

void multiply(const at::Tensor& matrix, const float* v, float* to) {
  const std::int64_t columns = matrix.size(1);
  const auto* const x = matrix.const_data_ptr<float>();
  at::parallel_for(0, matrix.size(0), grain(columns), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) to[i] = static_cast<float>(dot(x + i * columns, v, columns));
  });
}

void multiply_transposed(const at::Tensor& matrix, const float* v, float* to) {
  const std::int64_t rows = matrix.size(0), columns = matrix.size(1);
  const auto* const x = matrix.const_data_ptr<float>();
  at::parallel_for(0, columns, grain(rows), [&](std::int64_t begin, std::int64_t end) {
    std::vector<double> sums(static_cast<std::size_t>(end - begin));
    for (std::int64_t i = 0; i < rows; ++i) {
      const float* const row = x + i * columns + begin;
      const double factor{v[i]};
      for (std::size_t c = 0; c < sums.size(); ++c) sums[c] += factor * double{row[c]};
    }
    std::ranges::transform(sums, to + begin, [](double sum) { return static_cast<float>(sum); });
  });
}

void add_outer(const at::Tensor& matrix, const float* a, const float* b) {
  const std::int64_t columns = matrix.size(1);
  auto* const x = matrix.mutable_data_ptr<float>();
  at::parallel_for(0, matrix.size(0), grain(columns), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      float* const row = x + i * columns;
      for (std::int64_t c = 0; c < columns; ++c) row[c] += a[i] * b[c];
    }
  });
}

bool normalise(std::span<float> v) {
  const double norm = std::sqrt(dot(v.data(), v.data(), static_cast<std::int64_t>(v.size())));
  if (!(norm > 0) || !std::isfinite(norm)) return false;
  for (float& value : v) value = static_cast<float>(double{value} / norm);
  return true;
}

}  // namespace starling
