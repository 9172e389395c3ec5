#include "starling/optim/schemes/asynchronous.h"

#include <utility>

namespace starling {
namespace {

float* values_of(const Segment& segment) { return static_cast<float*>(segment.values().values); }

std::vector<std::vector<float>> copies_of(const std::vector<Block>& blocks) {
  std::vector<std::vector<float>> copies;
  for (const Block& block : blocks) {
    auto& copy = copies.emplace_back(static_cast<std::size_t>(block.length));
    for (const Segment& s : block.segments) std::copy_n(values_of(s), s.length, copy.begin() + s.offset);
  }
  return copies;
}

}  // namespace

Asynchronous::Asynchronous(std::vector<Block>& blocks, std::unique_ptr<Transport> transport,
                           GossipOptions options, Log log, std::shared_ptr<Timeline> timeline,
                           std::function<void()> adapt)
    : blocks_(blocks),
      taken_(copies_of(blocks)),
      gossip_(std::move(transport), std::move(options), taken_, std::move(log), std::move(timeline)),
      adapt_(std::move(adapt)) {}

void Asynchronous::step() {
  adapt_();
  for (std::size_t b = 0; b < blocks_.size(); ++b) renew(b);
  gossip_.stepped();
}

// What the rule has done goes to x and x~, and x to the parameters.
void Asynchronous::renew(std::size_t index) {
  gossip_.gradient(static_cast<int>(index), [&](std::span<float> x, std::span<float> x_tilde) {
    for (const Segment& s : blocks_[index].segments) {
      float* const parameter = values_of(s);
      for (std::int64_t i = 0; i < s.length; ++i) {
        const auto at = static_cast<std::size_t>(s.offset + i);
        const float d = parameter[i] - taken_[index][at];
        x[at] += d;
        if (!x_tilde.empty()) x_tilde[at] += d;
        taken_[index][at] = parameter[i] = x[at];
      }
    }
  });
}

void Asynchronous::pause() {
  gossip_.pause();
  for (std::size_t b = 0; b < blocks_.size(); ++b) renew(b);
}

ExchangeStatistics Asynchronous::counted() const {
  const GossipStatistics gossip = gossip_.statistics();
  ExchangeStatistics all;
  all.rounds = gossip.averaged;
  all.committed = gossip.averaged * blocks_.size();
  all.bytes_sent = gossip.bytes_sent;
  for (const auto& neighbour : gossip.neighbours) {
    all.aborted += neighbour.aborted;
    all.late += neighbour.late;
  }
  return all;
}

}  // namespace starling
