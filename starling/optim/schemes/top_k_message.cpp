#include "starling/optim/schemes/top_k_message.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

#include <ATen/Parallel.h>

namespace starling {
namespace {

constexpr std::uint64_t kTurns = 8;  // per one_in: the sample then adds a quarter of the entries' bytes
constexpr std::size_t kFour = 4;     // levels
constexpr std::uint32_t kPlaceBits = 12, kEntryBits = 14;
constexpr double kSigmas = 6;  // of the chosen values, which the four bins cover
constexpr std::int64_t kChunksPerThread = 16;

// Rising.
void choose_in_chunk(std::span<const float> v, std::span<std::uint32_t> places) {
  std::vector<std::uint32_t> order(v.size());
  std::iota(order.begin(), order.end(), 0U);
  if (places.size() < v.size()) {
    const auto larger = [&](std::uint32_t a, std::uint32_t b) {
      const float x = std::abs(v[a]), y = std::abs(v[b]);
      return x > y || (x == y && a < b);
    };
    std::ranges::nth_element(order, order.begin() + static_cast<std::ptrdiff_t>(places.size()), larger);
    std::sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(places.size()));
  }
  std::copy_n(order.begin(), places.size(), places.begin());
}

// The bin of each value: four of the same width, around the mean.
std::vector<std::uint32_t> bins_of(std::span<const float> values) {
  const auto n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const float value : values) squares += std::pow(double{value} - mean, 2);
  const double width = kSigmas * std::sqrt(squares / (n - 1)) / kFour;
  std::vector<std::uint32_t> bins;
  for (const float value : values) {
    const double at = width > 0 ? std::nearbyint((double{value} - mean) / width) + kFour / 2 : 0;
    bins.push_back(static_cast<std::uint32_t>(std::clamp(at, 0.0, double{kFour - 1})));
  }
  return bins;
}

}  // namespace

TopKMessage::TopKMessage(std::span<const Part> parts, int one_in, bool in_levels)
    : all_(one_in == 1),
      in_levels_(in_levels && !all_),
      turns_(all_ ? 1 : kTurns * static_cast<std::uint64_t>(one_in)) {
  std::int64_t begin = 0;
  for (const Part& part : parts) {
    Chosen chosen{.entry = entries_, .level = levels_};
    for (std::int64_t at = 0; at < part.length; at += part.chunk) {
      const std::int64_t length = std::min(part.chunk, part.length - at);
      const auto k = static_cast<std::size_t>((length + one_in - 1) / one_in);
      chunks_.push_back({parts_.size(), begin + at, length, entries_, k});
      entries_ += k;
    }
    chosen.entries = entries_ - chosen.entry;
    chosen.levels = in_levels_ ? std::min(chosen.entries, kFour) : chosen.entries;
    levels_ += chosen.levels;
    begin += part.length;
    parts_.push_back(chosen);
  }
  sample_ = (static_cast<std::size_t>(begin) + turns_ - 1) / turns_;
}

std::vector<std::uint32_t> TopKMessage::places_of(std::span<const float> v) const {
  std::vector<std::uint32_t> places(entries_);
  at::parallel_for(0, std::ssize(chunks_), kChunksPerThread, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t k = first; k < last; ++k) {
      const Chunk& chunk = chunks_[static_cast<std::size_t>(k)];
      choose_in_chunk(
          v.subspan(static_cast<std::size_t>(chunk.begin), static_cast<std::size_t>(chunk.length)),
          std::span(places).subspan(chunk.entry, chunk.entries));
    }
  });
  return places;
}

void TopKMessage::write(std::span<const float> v, std::span<const float> x, std::uint64_t turn,
                        std::span<float> message) const {
  std::ranges::fill(message, 0.0F);
  for (std::size_t s = 0, c = turn; c < x.size(); ++s, c += turns_) message[s] = x[c];
  if (all_) {
    std::ranges::copy(v, message.begin() + static_cast<std::ptrdiff_t>(sample_));
    return;
  }
  std::vector<std::uint32_t> entries = places_of(v);
  std::vector<float> values(entries_);
  for (const Chunk& chunk : chunks_) {
    for (std::size_t e = chunk.entry; e < chunk.entry + chunk.entries; ++e)
      values[e] = v[static_cast<std::size_t>(chunk.begin) + entries[e]];
  }
  for (const Chosen& part : parts_)
    write_levels(part, std::span(values).subspan(part.entry, part.entries), message, entries);
  for (std::size_t e = 0; e < entries_; e += 2) {
    const std::uint32_t second = e + 1 < entries_ ? entries[e + 1] : 0;
    message[sample_ + levels_ + e / 2] = std::bit_cast<float>(entries[e] | second << kEntryBits);
  }
}

void TopKMessage::write_levels(const Chosen& part, std::span<const float> values, std::span<float> message,
                               std::span<std::uint32_t> entries) const {
  const std::span<float> levels = message.subspan(sample_ + part.level, part.levels);
  if (part.entries == part.levels) {
    std::ranges::copy(values, levels.begin());
    for (std::uint32_t e = 0; e < part.entries && in_levels_; ++e) entries[part.entry + e] |= e << kPlaceBits;
    return;
  }
  const std::vector<std::uint32_t> bins = bins_of(values);
  std::array<double, kFour> sums{}, counts{};
  for (std::size_t e = 0; e < bins.size(); ++e) {
    sums[bins[e]] += values[e], ++counts[bins[e]];
    entries[part.entry + e] |= bins[e] << kPlaceBits;
  }
  std::ranges::transform(sums, counts, levels.begin(), [](double sum, double count) {
    return count == 0 ? 0.0F : static_cast<float>(sum / count);
  });
}

void TopKMessage::add(std::span<const float> message, float weight, std::span<float> v) const {
  const auto levels = message.subspan(sample_, levels_), words = message.subspan(sample_ + levels_);
  if (all_) {
    for (std::size_t i = 0; i < v.size(); ++i) v[i] += weight * levels[i];
    return;
  }
  const auto add_chunk = [&](const Chunk& chunk) {
    const Chosen& part = parts_[chunk.part];
    for (std::size_t e = chunk.entry; e < chunk.entry + chunk.entries; ++e) {
      const std::uint32_t entry = std::bit_cast<std::uint32_t>(words[e / 2]) >> (e % 2 * kEntryBits);
      const std::uint32_t place = entry & ((1U << kPlaceBits) - 1), bin = entry >> kPlaceBits & (kFour - 1);
      const std::size_t level = in_levels_ ? bin : e - part.entry;
      if (place >= chunk.length || level >= part.levels) continue;  // no worker writes such an entry
      v[static_cast<std::size_t>(chunk.begin) + place] += weight * levels[part.level + level];
    }
  };
  at::parallel_for(0, std::ssize(chunks_), kChunksPerThread, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t k = first; k < last; ++k) add_chunk(chunks_[static_cast<std::size_t>(k)]);
  });
}

void TopKMessage::mix_sample(std::span<const float> theirs, std::span<const float> mine, float weight,
                             std::uint64_t turn, std::span<float> x) const {
  for (std::size_t s = 0, c = turn; c < x.size(); ++s, c += turns_) x[c] += weight * (theirs[s] - mine[s]);
}

}  // namespace starling
