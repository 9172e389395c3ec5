#include "starling/exchange/replicas.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

namespace starling {
namespace {

std::vector<float> joined(Replicas::Values x) {
  std::vector<float> all;
  for (const auto piece : x) all.insert(all.end(), piece.begin(), piece.end());
  return all;
}

void take_block(std::span<const std::byte> block, TopK top, std::vector<float>& copy) {
  if (block.empty()) return;
  const auto* const indices = reinterpret_cast<const std::uint32_t*>(block.data());
  if (top.one_in == 1) {
    std::copy_n(reinterpret_cast<const float*>(block.data()), copy.size(), copy.begin());
    return;
  }
  const std::size_t k = top.chosen_of(copy.size());
  const auto* const values = reinterpret_cast<const float*>(block.data()) + k;
  for (std::size_t i = 0; i < k; ++i) {
    const std::uint32_t index = indices[i];
    if (index < copy.size()) copy[index] = values[i];
  }
}

// |a - b|^2. In lanes, so that the compiler adds several numbers at once.
double squared_distance(std::span<const float> a, const float* b) {
  std::array<double, 8> lanes{};
  const auto add = [&](std::size_t i, double& sum) {
    const double apart = double{a[i]} - double{b[i]};
    sum += apart * apart;
  };
  std::size_t i = 0;
  for (; i + lanes.size() <= a.size(); i += lanes.size()) {
    for (std::size_t l = 0; l < lanes.size(); ++l) add(i + l, lanes[l]);
  }
  for (; i < a.size(); ++i) add(i, lanes[0]);
  return std::reduce(lanes.begin(), lanes.end());
}

}  // namespace

double default_gamma(int one_in) { return std::min(1.0, 1.6 / one_in); }

void Replicas::begin(std::span<const int> neighbours, Values x) {
  const std::vector<float> all = joined(x);
  edges.clear();
  for (const int rank : neighbours) edges.push_back({rank, all, all});
}

std::vector<double> Replicas::distances(Values x) const {
  std::vector<double> all;
  for (const Edge& edge : edges) {
    double& sum = all.emplace_back(0);
    std::size_t at = 0;
    for (const auto piece : x) {
      sum += squared_distance(piece, edge.mine.data() + at);
      at += piece.size();
    }
  }
  return all;
}

void Replicas::write(Values x, TopK top, void* block, std::vector<std::uint32_t>& room) const {
  if (edges.empty()) return;
  const std::size_t n = edges.front().mine.size(), k = top.chosen_of(n);
  if (top.one_in == 1) {
    auto* to = static_cast<float*>(block);
    for (const auto piece : x) to = std::copy(piece.begin(), piece.end(), to);
    return;
  }
  room.assign(n, 0);
  for (const Edge& edge : edges) {
    std::size_t at = 0;
    for (const auto piece : x) {
      // The bits of positive floats have the floats' order.
      for (std::size_t i = 0; i < piece.size(); ++i) {
        const auto size = std::bit_cast<std::uint32_t>(std::abs(piece[i] - edge.mine[at + i]));
        room[at + i] = std::max(room[at + i], size);
      }
      at += piece.size();
    }
  }
  const std::span<std::uint32_t> indices(static_cast<std::uint32_t*>(block), k);
  choose_largest(room, indices);
  float* const values = static_cast<float*>(block) + k;
  std::size_t at = 0, i = 0;
  for (const auto piece : x) {
    for (; i < k && indices[i] < at + piece.size(); ++i) values[i] = piece[indices[i] - at];
    at += piece.size();
  }
}

Arrival Replicas::take(const Arrival& swap, TopK top, double gamma) {
  Edge& edge = *std::ranges::find(edges, swap.rank, &Edge::rank);
  take_block(swap.mine.bytes(), top, edge.mine);
  take_block(swap.theirs.bytes(), top, edge.theirs);
  return {swap.rank,
          static_cast<float>(gamma * swap.weight),
          {{nullptr, std::as_bytes(std::span(edge.theirs))}, Wire::fp32},
          {{nullptr, std::as_bytes(std::span(edge.mine))}, Wire::fp32},
          swap.round};
}

}  // namespace starling
