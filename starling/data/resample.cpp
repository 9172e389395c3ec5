#include "starling/data/resample.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace starling {

namespace {

constexpr std::size_t kBytes = 4;  // of a pixel
// The same on every processor: no sum is taken across lanes.
using Colour [[gnu::vector_size(16)]] = float;

}  // namespace

void Taps::set(double begin, double length, int size, int low, int high, bool mirror) {
  taps_.clear();
  weights_.clear();
  first_ = high;
  end_ = low;
  const double step = length / size, reach = std::max(step, 1.0);
  for (int i = 0; i < size; ++i) {
    const double centre = begin + ((mirror ? size - 1 - i : i) + 0.5) * step;
    const int first = std::clamp(static_cast<int>(centre - reach + 0.5), low, high - 1);
    const int end = std::clamp(static_cast<int>(centre + reach + 0.5), first + 1, high);
    const std::size_t begin_of_weights = weights_.size();
    double sum = 0;
    for (int x = first; x < end; ++x) {
      // A lone pixel may lie at the filter's edge.
      const double w = std::max(1 - std::abs(x + 0.5 - centre) / reach, 1e-9);
      weights_.push_back(static_cast<float>(w));
      sum += w;
    }
    for (std::size_t w = begin_of_weights; w < weights_.size(); ++w) weights_[w] /= static_cast<float>(sum);
    taps_.push_back({first, end - first, begin_of_weights});
    first_ = std::min(first_, first);
    end_ = std::max(end_, end);
  }
}

void resample(const Pixels& image, const Taps& columns, const Taps& rows, std::vector<float>& row,
              std::uint8_t* out) {
  const std::size_t length = static_cast<std::size_t>(image.width) * kBytes;
  row.resize(length);
  for (int i = 0; i < rows.size(); ++i) {
    const Taps::Tap& down = rows.at(i);
    std::fill(row.begin(), row.end(), 0.5F);  // to round
    for (int t = 0; t < down.count; ++t) {
      const float w = rows.weight(down.w + static_cast<std::size_t>(t));
      const std::uint8_t* from = image.bytes + static_cast<std::size_t>(down.first + t - image.y) * length;
      float* const to = row.data();
      for (std::size_t k = 0; k < length; ++k) to[k] += w * static_cast<float>(from[k]);
    }
    for (int j = 0; j < columns.size(); ++j) {
      const Taps::Tap& across = columns.at(j);
      const float* from = row.data() + static_cast<std::size_t>(across.first - image.x) * kBytes;
      Colour sum{};
      for (int t = 0; t < across.count; ++t, from += kBytes) {
        Colour pixel;
        std::memcpy(&pixel, from, sizeof pixel);
        sum += columns.weight(across.w + static_cast<std::size_t>(t)) * pixel;
      }
      for (int c = 0; c < 3; ++c) *out++ = static_cast<std::uint8_t>(std::min(sum[c], 255.0F));
    }
  }
}

}  // namespace starling
