// The counts of an optimizer, and the sizes of its parts.
#include "starling/optim/statistics.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <ATen/ops/ones_like.h>

#include "starling/optim/engine.h"

namespace starling {

ExchangeStatistics Optimizer::counted() const {
  ExchangeStatistics all;
  if (engine_->exchange) all = engine_->exchange->statistics();
  all.lost.merge(engine_->epoch.away(engine_->world.size));
  if (engine_->scheme) all += engine_->scheme->counted();
  all += engine_->before;
  return all;
}

Statistics Optimizer::statistics() const {
  const ExchangeStatistics edges = counted();
  Statistics all{.rounds = edges.rounds,
                 .skipped_rounds = edges.skipped_rounds,
                 .round = engine_->rounds_before + (engine_->exchange ? engine_->exchange->round() : 0),
                 .committed = edges.committed,
                 .aborted = edges.aborted,
                 .jumped = edges.jumped,
                 .late = edges.late,
                 .bytes_sent = edges.bytes_sent,
                 .bytes_in_place = edges.bytes_in_place,
                 .payload_sent = edges.payload_sent,
                 .directed_aborted = edges.directed_aborted,
                 .seconds_waiting = edges.seconds_waiting,
                 .skipped = engine_->clipping.skipped(),
                 .lost = {edges.lost.begin(), edges.lost.end()},
                 .membership = engine_->membership ? engine_->epoch.number : 0,
                 .joins = engine_->joins,
                 .mixed = edges.mixed};
  const std::optional<GossipStatistics> of_pairs = engine_->scheme->gossip();
  if (!of_pairs) return all;
  const GossipStatistics& gossip = *of_pairs;
  double squares = 0;
  for (const auto& j : gossip.neighbours) {
    all.edges.push_back({j.rank, j.averaged, j.gap, j.longest_gap, j.distance});
    squares += j.distance * j.distance;
  }
  const PairingStatistics& pairing = gossip.pairing;
  all.questions = {pairing.asked, pairing.refused, pairing.unanswered, pairing.dropped};
  all.gradients_of_all = gossip.gradients_of_all;
  if (gossip.gradients > 0)
    all.rate = static_cast<double>(gossip.averaged) / static_cast<double>(gossip.gradients);
  const auto met = std::ranges::count_if(gossip.neighbours, [](const auto& j) { return j.received > 0; });
  if (met > 0) all.distance = std::sqrt(squares / static_cast<double>(met));
  return all;
}

std::vector<std::int64_t> Optimizer::block_sizes() const {
  std::vector<std::int64_t> sizes;
  for (const Block& block : engine_->blocks) sizes.push_back(block.length);
  return sizes;
}

at::Tensor Optimizer::weights(const at::Tensor& parameter) const {
  // In the parameter's memory order.
  at::Tensor weights = at::ones_like(parameter, at::TensorOptions(at::kDouble).device(at::kCPU));
  const std::vector<double> of_blocks = engine_->scheme->weights();
  for (std::size_t b = 0; b < of_blocks.size(); ++b) {
    for (const Segment& s : engine_->blocks[b].segments) {
      if (s.parameter.is_same(parameter))
        std::fill_n(weights.mutable_data_ptr<double>() + s.begin, s.length, of_blocks[b]);
    }
  }
  return weights;
}

std::int64_t Optimizer::parameter_count() const {
  std::int64_t count = 0;
  for (const Block& block : engine_->blocks) {
    for (const Segment& segment : block.segments) count += segment.length;
  }
  return count;
}

}  // namespace starling
