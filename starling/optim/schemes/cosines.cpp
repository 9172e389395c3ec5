#include "starling/optim/schemes/cosines.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>

namespace starling {
namespace {

constexpr std::int64_t kSide = 64;

std::int64_t side_of(std::int64_t n) {
  std::int64_t side = std::min(n, kSide);
  while (n % side != 0) --side;
  return side;
}

void append_tiles(std::vector<Tiles>& all, const Segment& s) {
  const at::Tensor& p = s.parameter;
  std::int64_t rows = 1;
  for (std::int64_t d = 0, stride = 0; d < p.dim() && p.dim() > 1; ++d) {
    if (p.size(d) > 1 && p.stride(d) > stride) rows = p.size(d), stride = p.stride(d);
  }
  const std::int64_t columns = s.length / rows, h = side_of(rows), w = side_of(columns);
  if (rows > 1 && h * w >= kSide) {
    all.push_back({s.offset, rows, columns, h, w});
    return;
  }
  const std::int64_t rest = s.length % kSide, whole = s.length - rest;
  if (whole > 0) all.push_back({s.offset, 1, whole, 1, kSide});
  if (rest > 0) all.push_back({s.offset + whole, 1, rest, 1, rest});
}

at::Tensor cosines(std::int64_t n) {
  at::Tensor all = at::empty({n, n}, at::kFloat);
  auto* const values = all.mutable_data_ptr<float>();
  const auto size = static_cast<double>(n);
  for (std::int64_t k = 0; k < n; ++k) {
    for (std::int64_t i = 0; i < n; ++i) {
      const double angle = std::numbers::pi * static_cast<double>((2 * i + 1) * k) / (2 * size);
      values[k * n + i] = static_cast<float>(std::sqrt((k == 0 ? 1 : 2) / size) * std::cos(angle));
    }
  }
  return all;
}

// f(tiles, their values, where the result belongs, C_h, C_w)
template <class F>
at::Tensor tile_by_tile(const Block& block, const at::Tensor& v, const F& f) {
  std::map<std::int64_t, at::Tensor> known;
  const auto of_side = [&](std::int64_t n) {
    at::Tensor& one = known[n];
    if (!one.defined()) one = cosines(n);
    return one;
  };
  at::Tensor to = at::empty_like(v);
  for (const Tiles& t : tiles_of(block))
    f(t, v.narrow(0, t.begin, t.values()), to.narrow(0, t.begin, t.values()), of_side(t.h), of_side(t.w));
  return to;
}

}  // namespace

std::vector<Tiles> tiles_of(const Block& block) {
  std::vector<Tiles> all;
  for (const Segment& s : block.segments) append_tiles(all, s);
  return all;
}

at::Tensor cosine_transform(const Block& block, const at::Tensor& v) {
  return tile_by_tile(
      block, v,
      [](const Tiles& t, const at::Tensor& from, const at::Tensor& to, const at::Tensor& rows,
         const at::Tensor& columns) {
        const std::int64_t down = t.rows / t.h, across = t.columns / t.w;
        const at::Tensor tiles = from.view({down, t.h, across, t.w}).transpose(1, 2);
        to.view({down, across, t.h, t.w}).copy_(at::matmul(at::matmul(rows, tiles), columns.t()));
      });
}

at::Tensor inverse_cosine_transform(const Block& block, const at::Tensor& coefficients) {
  return tile_by_tile(block, coefficients,
                      [](const Tiles& t, const at::Tensor& from, const at::Tensor& to, const at::Tensor& rows,
                         const at::Tensor& columns) {
                        const std::int64_t down = t.rows / t.h, across = t.columns / t.w;
                        const at::Tensor tiles =
                            at::matmul(at::matmul(rows.t(), from.view({down, across, t.h, t.w})), columns);
                        to.view({down, t.h, across, t.w}).copy_(tiles.transpose(1, 2));
                      });
}

}  // namespace starling
