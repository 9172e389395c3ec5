#include "starling/optim/schemes/asynchronous.h"

#include <algorithm>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/record_function.h>

#include "starling/kernels/update.h"

namespace starling {
namespace {

constexpr std::int64_t kGrain = 1 << 15;  // elements that are worth a thread

std::vector<std::vector<float>> copies_of(std::vector<Block>& blocks) {
  with_masters(blocks);
  std::vector<std::vector<float>> copies;
  for (const Block& block : blocks) {
    auto& copy = copies.emplace_back(static_cast<std::size_t>(block.length));
    for (const Segment& s : block.segments) {
      const kernels::Parameters p = s.values();
      std::copy_n(p.master != nullptr ? p.master : static_cast<const float*>(p.values), s.length,
                  copy.begin() + s.offset);
    }
  }
  return copies;
}

}  // namespace

Asynchronous::Asynchronous(std::vector<Block>& blocks, std::unique_ptr<Transport> transport,
                           GossipOptions options, Log log, std::shared_ptr<Timeline> timeline,
                           std::function<void()> adapt)
    : blocks_(blocks),
      momentum_(options.momentum.eta != 0),
      taken_(copies_of(blocks)),
      gossip_(std::move(transport), std::move(options), taken_, std::move(log), std::move(timeline)),
      adapt_(std::move(adapt)) {
  // Of push-sum, where a parameter group has been added in mid-run.
  for (std::size_t b = 0; b < taken_.size(); ++b)
    gossip_.look(static_cast<int>(b), [&](const Gossip::Held& held) { held.weight += blocks[b].weight - 1; });
}

void Asynchronous::begin() {
  if (!paused_) return gossip_.meet();  // a first time: neighbours may have averaged with it already
  gossip_.forget();
  taken_ = copies_of(blocks_);
  for (std::size_t b = 0; b < taken_.size(); ++b) {
    gossip_.look(static_cast<int>(b), [&](const Gossip::Held& held) {
      std::ranges::copy(taken_[b], held.x.begin());
      if (momentum_) std::ranges::copy(taken_[b], held.x_tilde.begin());
      std::ranges::fill(held.y, 0.0F);
      held.weight = blocks_[b].weight;
    });
  }
}

void Asynchronous::step() {
  resume();
  adapt();
  give();
}

void Asynchronous::each_block(const std::function<void(const Block&, const Gossip::Held&)>& f) {
  for (std::size_t b = 0; b < taken_.size(); ++b)
    gossip_.look(static_cast<int>(b), [&](const Gossip::Held& held) { f(blocks_[b], held); });
}

void Asynchronous::give() {
  for (std::size_t b = 0; b < taken_.size(); ++b) {
    gossip_.gradient(static_cast<int>(b), [&](const Gossip::Held& held) { renew(b, held); });
  }
  gossip_.stepped();
}

// What the rule has done goes to x and x~, and x to the parameters.
void Asynchronous::renew(std::size_t block, const Gossip::Held& held) {
  RECORD_USER_SCOPE("starling::renew");
  blocks_[block].weight = held.weight;
  for (const Segment& s : blocks_[block].segments) {
    const kernels::Parameters p = s.values();
    at::parallel_for(0, s.length, kGrain, [&](std::int64_t begin, std::int64_t end) {
      const auto first = static_cast<std::size_t>(begin), n = static_cast<std::size_t>(end - begin);
      const std::size_t first_in_block = static_cast<std::size_t>(s.offset) + first;
      in_parts(held.x.subspan(first_in_block, n),
               momentum_ ? held.x_tilde.subspan(first_in_block, n) : held.x_tilde,
               [&](std::size_t at, std::span<float> x, std::span<float> x_tilde) {
                 mix_momentum(x, x_tilde, held.eta_tau);
                 kernels::best_kernels().renew(p.from(first + at), &taken_[block][first_in_block + at],
                                               x.data(), momentum_ ? x_tilde.data() : nullptr,
                                               static_cast<float>(1 / held.weight), x.size());
               });
    });
    s.parameter.unsafeGetTensorImpl()->bump_version();
  }
}

void Asynchronous::stand_by() { standing_by_ |= gossip_.stand_by(); }

void Asynchronous::pause() {
  if (!std::exchange(paused_, true)) gossip_.pause();
}

void Asynchronous::resume() {
  const bool stood_by = std::exchange(standing_by_, false);
  if (std::exchange(paused_, false) || stood_by) gossip_.resume();
}

void Asynchronous::renew() {
  for (std::size_t b = 0; b < taken_.size(); ++b) {
    gossip_.look(static_cast<int>(b), [&](const Gossip::Held& held) { renew(b, held); });
  }
}

void Asynchronous::x_tilde(std::size_t block, const std::function<void(std::span<float>)>& f) {
  gossip_.look(static_cast<int>(block), [&](const Gossip::Held& held) { f(held.x_tilde); });
}

ExchangeStatistics Asynchronous::counted() const {
  const GossipStatistics gossip = gossip_.statistics();
  ExchangeStatistics all;
  all.rounds = gossip.averaged;
  all.committed = gossip.averaged * taken_.size();
  all.bytes_sent = gossip.bytes_sent;
  for (const auto& neighbour : gossip.neighbours) {
    all.aborted += neighbour.aborted;
    all.late += neighbour.late;
  }
  return all;
}

}  // namespace starling
