#include "starling/optim/schemes/copies.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

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

// A copy that is not finite would be mixed into the neighbour's parameters, which are.
float finite_or_0(float value) { return std::isfinite(value) ? value : 0; }

}  // namespace

void Copies::attach(const Graph& graph) {
  graph_ = graph;
  fresh_ = replicas_.empty();
  begin();
}

void Copies::restart() {
  replicas_.clear();
  begin();
  fresh_ = false;
}

void Copies::agree(Exchange& exchange) {
  for (Replicas& replicas : replicas_) {
    for (Replicas::Edge& edge : replicas.edges) {
      for (std::vector<float>* const copy : {&edge.mine, &edge.theirs})
        std::ranges::transform(*copy, copy->begin(), finite_or_0);
    }
  }
  if (std::exchange(fresh_, false)) return;
  for (auto edges = differing(exchange); !edges.empty(); edges = differing(exchange))
    begin_again(exchange, edges);
}

std::vector<double> Copies::distances(const Block& block) const {
  return of(block).distances(pieces_of(x_.of(block)));
}

void Copies::write(const Block& block, void* to) {
  of(block).write(pieces_of(x_.of(block)), top_, to, room_);
}

void Copies::combine(Block& block, std::span<const Arrival> finished, double gamma) {
  if (finished.empty()) return;
  std::vector<Arrival> swaps(finished.begin(), finished.end());
  std::ranges::stable_sort(swaps, {}, &Arrival::round);  // a mended swap is older than this round's
  for (auto first = swaps.begin(); first != swaps.end();) {
    const std::uint64_t round = first->round;
    std::vector<Arrival> mixes;
    for (; first != swaps.end() && first->round == round; ++first)
      mixes.push_back(of(block).take(*first, top_, gamma));
    mix(x_.of(block), mixes, {});
  }
  x_.write(block);
}

void Copies::begin() {
  with_masters(blocks_);
  x_.attach(blocks_);
  std::vector<int> neighbours;
  for (const Neighbour& j : graph_.neighbours[static_cast<std::size_t>(rank_)]) neighbours.push_back(j.rank);
  for (std::size_t b = replicas_.size(); b < blocks_.size(); ++b)
    replicas_.emplace_back().begin(neighbours, pieces_of(x_.read(blocks_[b])));
}

void Copies::state(StateVisitor& visitor) {
  for (std::size_t e = 0; e < replicas_.front().edges.size(); ++e) {
    const auto copies = [&](std::vector<float> Replicas::Edge::* which) {
      return [this, e, which](Block& block, const std::function<void(const at::Tensor&)>& f) {
        std::vector<float>& all = of(block).edges[e].*which;
        f(at::from_blob(all.data(), {block.length}, at::kFloat));
      };
    };
    const int rank = replicas_.front().edges[e].rank;
    visitor.values(fmt::format("published.{}", rank), Fresh::parameter, copies(&Replicas::Edge::mine));
    visitor.values(fmt::format("replica.{}", rank), Fresh::parameter, copies(&Replicas::Edge::theirs));
  }
}

// All workers' edges whose two ends differ, each once. The same on all workers.
std::vector<Copies::Pair> Copies::differing(Exchange& exchange) {
  std::vector<std::int64_t> checksums;  // for each (i, j): i's, then j's
  std::vector<Pair> edges;
  const auto checksum = [&](int other) {
    std::uint32_t sum = 0;
    for (const Block& block : blocks_) {
      const auto& edge = *std::ranges::find(of(block).edges, other, &Replicas::Edge::rank);
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
  exchange.maximum(checksums);
  std::vector<Pair> differ;
  for (std::size_t e = 0; e < edges.size(); ++e) {
    // An end that is gone is unknown, and does not matter.
    const bool both = checksums[2 * e] != 0 && checksums[2 * e + 1] != 0;
    if (both && checksums[2 * e] != checksums[2 * e + 1]) differ.push_back(edges[e]);
  }
  return differ;
}

// Sets all copies of these edges to the parameters of the first edge's first end. All other workers
// contribute 0, so the maximum is that worker's values, or 0 if it has died.
void Copies::begin_again(Exchange& exchange, const std::vector<Pair>& edges) {
  const int from = edges.front().first;
  for (Block& block : blocks_) {
    std::vector<std::int64_t> values(static_cast<std::size_t>(block.length));
    if (rank_ == from) {
      std::size_t at = 0;
      for (const auto piece : pieces_of(x_.read(block))) {
        for (const float value : piece)
          values[at++] = std::int64_t{std::bit_cast<std::uint32_t>(finite_or_0(value))} + 1;
      }
    }
    exchange.maximum(values);
    if (std::ranges::find(values, 0) != values.end()) return;
    for (const auto& [i, j] : edges) {
      if (i != rank_ && j != rank_) continue;
      auto& edge = *std::ranges::find(of(block).edges, i == rank_ ? j : i, &Replicas::Edge::rank);
      for (std::size_t c = 0; c < values.size(); ++c)
        edge.mine[c] = std::bit_cast<float>(static_cast<std::uint32_t>(values[c] - 1));
      edge.theirs = edge.mine;
    }
  }
}

}  // namespace starling
