#include "starling/optim/schemes/choco.h"

#include <algorithm>
#include <bit>
#include <span>
#include <utility>

#include "starling/core/crc32c.h"

namespace starling {
namespace {

std::vector<std::span<const float>> pieces_of(const Block& block) {
  std::vector<std::span<const float>> pieces;
  for (const Segment& s : block.segments) {
    const kernels::Parameters x = s.values();
    const auto* const values = s.format == Wire::fp32 ? static_cast<const float*>(x.values) : x.master;
    pieces.emplace_back(values, static_cast<std::size_t>(s.length));
  }
  return pieces;
}

}  // namespace

Choco::Choco(std::vector<Block>& blocks, Exchange& exchange, const Graph& graph, int rank, TopK top,
             double gamma, RuleOf rule, Clipping& clipping)
    : blocks_(blocks),
      exchange_(exchange),
      graph_(graph),
      rank_(rank),
      top_(top),
      gamma_(gamma),
      rule_(std::move(rule)),
      clipping_(clipping) {
  with_masters(blocks);
  std::vector<int> neighbours;
  for (const Neighbour& j : graph_.neighbours[static_cast<std::size_t>(rank_)]) neighbours.push_back(j.rank);
  for (Block& block : blocks_) {
    if (block.replicas.begun) {
      fresh_ = false;
    } else {
      block.replicas.begin(neighbours, pieces_of(block));
    }
  }
}

void Choco::begin() {
  if (!std::exchange(fresh_, false)) {
    for (auto edges = differing(); !edges.empty(); edges = differing()) begin_again(edges);
  }
}

void Choco::step() {
  const auto scale = clipping_.scale([&] { return sum_of_squares(blocks_); });
  for (Block& block : blocks_) {
    const bool finite = update(block, rule_(block.group), {}, {}, scale);
    const Outgoing wire = exchange_.wire(block.index);
    if (finite && wire.values != nullptr) block.replicas.write(pieces_of(block), top_, wire.values, room_);
    start(exchange_, block, finite);
  }
  for (Block& block : blocks_) combine(block);
}

void Choco::combine(Block& block) {
  const auto finished = finish(exchange_, block);
  std::vector<Arrival> swaps(finished.begin(), finished.end());
  std::ranges::stable_sort(swaps, {}, &Arrival::round);  // what was mended is older than what came
  for (auto first = swaps.begin(); first != swaps.end();) {
    const std::uint64_t round = first->round;
    std::vector<Arrival> mixes;
    for (; first != swaps.end() && first->round == round; ++first)
      mixes.push_back(block.replicas.take(*first, top_, gamma_));
    mix(block, mixes, {});
  }
}

// Of all workers' edges, each once, the lower rank first. The same on all workers.
std::vector<std::pair<int, int>> Choco::differing() {
  std::vector<std::int64_t> checksums;  // of (i, j), what i has; then what j has
  std::vector<std::pair<int, int>> edges;
  const auto checksum = [&](int other) {
    std::uint32_t sum = 0;
    for (const Block& block : blocks_) {
      const auto& edge = *std::ranges::find(block.replicas.edges, other, &Replicas::Edge::rank);
      const bool lower = rank_ < other;
      sum = crc32c(std::as_bytes(std::span(lower ? edge.mine : edge.theirs)), sum);
      sum = crc32c(std::as_bytes(std::span(lower ? edge.theirs : edge.mine)), sum);
    }
    return std::int64_t{sum} + 1;
  };
  for (int i = 0; i < graph_.workers(); ++i) {
    for (const Neighbour& j : graph_.neighbours[static_cast<std::size_t>(i)]) {
      if (j.rank < i) continue;
      edges.emplace_back(i, j.rank);
      checksums.push_back(i == rank_ ? checksum(j.rank) : 0);
      checksums.push_back(j.rank == rank_ ? checksum(i) : 0);
    }
  }
  exchange_.maximum(checksums);
  std::vector<std::pair<int, int>> differ;
  for (std::size_t e = 0; e < edges.size(); ++e) {
    // Of an end that is gone nothing is known, nor does it matter.
    const bool both = checksums[2 * e] != 0 && checksums[2 * e + 1] != 0;
    if (both && checksums[2 * e] != checksums[2 * e + 1]) differ.push_back(edges[e]);
  }
  return differ;
}

// All copies of these edges become the parameters of the first edge's first end. The maximum is that worker's values, since all
// the others' are 0, or 0 if it has died.
void Choco::begin_again(const std::vector<std::pair<int, int>>& edges) {
  const int from = edges.front().first;
  for (Block& block : blocks_) {
    std::vector<std::int64_t> values(static_cast<std::size_t>(block.length));
    if (rank_ == from) {
      std::size_t at = 0;
      for (const auto piece : pieces_of(block)) {
        for (const float value : piece) values[at++] = std::int64_t{std::bit_cast<std::uint32_t>(value)} + 1;
      }
    }
    exchange_.maximum(values);
    if (std::ranges::find(values, 0) != values.end()) return;
    for (const auto& [i, j] : edges) {
      if (i != rank_ && j != rank_) continue;
      auto& edge = *std::ranges::find(block.replicas.edges, i == rank_ ? j : i, &Replicas::Edge::rank);
      for (std::size_t c = 0; c < values.size(); ++c)
        edge.mine[c] = std::bit_cast<float>(static_cast<std::uint32_t>(values[c] - 1));
      edge.theirs = edge.mine;
    }
  }
}

}  // namespace starling
