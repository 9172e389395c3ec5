// Exact averages over the edges of an exchange: their buffers and frames, and the wait of the training thread; the
// protocol is Average's.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/exchange/exchange.h"

namespace starling {
namespace {

// A set of ranks as a bit map, to cross an edge.
std::vector<std::byte> to_bits(const std::set<int>& ranks, int size) {
  std::vector<std::byte> bits((static_cast<std::size_t>(size) + 7) / 8);
  for (const int rank : ranks) bits[static_cast<std::size_t>(rank) / 8] |= std::byte{1} << (rank % 8);
  return bits;
}

// A share's attempt and step name it as a round and a block name a swap.
SwapId share_id(const Frame& frame) { return {frame.block, frame.step}; }

std::set<int> from_bits(std::span<const std::byte> bits, int size) {
  std::set<int> ranks;
  for (int rank = 0; rank < size; ++rank) {
    if ((bits[static_cast<std::size_t>(rank) / 8] >> (rank % 8) & std::byte{1}) != std::byte{0})
      ranks.insert(rank);
  }
  return ranks;
}

}  // namespace

// ---------------------------------------------------------------- the training thread

std::set<int> Exchange::average(std::span<float> values) {
  const auto bytes = std::as_writable_bytes(values);
  return run_average(
      {bytes.begin(), bytes.end()},
      [](const std::vector<std::byte>& mine, std::span<const Average::Share> shares) {
        std::vector<std::byte> result(mine.size());
        const auto* x = reinterpret_cast<const float*>(mine.data());
        auto* y = reinterpret_cast<float*>(result.data());
        const std::size_t n = mine.size() / sizeof(float);
        std::copy(x, x + n, y);
        for (const auto& [weight, bytes] : shares) {
          const auto* theirs = reinterpret_cast<const float*>(bytes->data());
          const auto w = static_cast<float>(weight);
          for (std::size_t k = 0; k < n; ++k) y[k] += w * (theirs[k] - x[k]);
        }
        return result;
      },
      bytes);
}

std::set<int> Exchange::maximum(std::span<std::int64_t> values) {
  const auto bytes = std::as_writable_bytes(values);
  return run_average(
      {bytes.begin(), bytes.end()},
      [](const std::vector<std::byte>& mine, std::span<const Average::Share> shares) {
        std::vector<std::byte> result = mine;
        auto* y = reinterpret_cast<std::int64_t*>(result.data());
        for (const auto& share : shares) {
          const auto* theirs = reinterpret_cast<const std::int64_t*>(share.bytes->data());
          for (std::size_t k = 0; k < mine.size() / sizeof(std::int64_t); ++k)
            y[k] = std::max(y[k], theirs[k]);
        }
        return result;
      },
      bytes);
}

std::set<int> Exchange::run_average(std::vector<std::byte> mine, Average::Combine combine,
                                    std::span<std::byte> result) {
  const Timeline::Scope span(timeline_.get(), {.name = "average"});
  open();
  std::unique_lock lock(mutex_);
  averaged_.reset();
  auto values = std::make_shared<const std::vector<std::byte>>(std::move(mine));
  transport_->post([this, values, combine = std::move(combine)] {
    std::set<int> there{transport_->rank()};
    {
      const std::lock_guard guard(mutex_);
      for (const auto& peer : peers_) {
        if (peer->rank != transport_->rank() && !peer->left && !gone_.contains(peer->rank))
          there.insert(peer->rank);
      }
    }
    average_bytes_ = values->size();
    average_.begin(values, there, combine);
  });
  const Time begin = transport_->now();
  while (!wait(lock, patience_.stalled, [&] { return averaged_.has_value(); })) {
    transport_->post(
        [this, stop = ask(patience_.interrupted, lock), waited = seconds(transport_->now() - begin)] {
          if (stop) return average_.quit();
          for (const int rank : average_.awaited()) {
            log_(Level::warning,
                 fmt::format("worker {} has not come to an average after {:.1f} s: going on without it", rank,
                             waited));
            average_.gone(rank);
          }
        });
  }
  auto [bytes, participants] = *std::exchange(averaged_, std::nullopt);
  if (!average_failed_.empty()) throw Error(std::exchange(average_failed_, {}));
  std::copy(bytes->begin(), bytes->end(), result.begin());
  return participants;
}

// ---------------------------------------------------------------- the transport's thread

std::span<std::byte> Exchange::place_share(Peer& sender, const Frame& frame) {
  if (!average_.running() || frame.round != average_.id() || frame.total != average_bytes_) return {};
  if (!sender.shares.may_take(share_id(frame))) return {};
  return sender.shares.place(share_id(frame), frame, [&]() -> Inbox::Room {
    auto share = std::make_shared<std::vector<std::byte>>(frame.total);
    return {share, *share};
  });
}

void Exchange::received_share(Peer& sender, const Frame& frame, std::span<const std::byte> payload,
                              bool intact) {
  if (!average_.running() || frame.round != average_.id()) return;
  if (frame.total != average_bytes_) {
    {
      const std::lock_guard lock(mutex_);
      average_failed_ = fmt::format(
          "worker {} averages {} bytes, and worker {} {}: all must average the same, in the same order",
          transport_->rank(), average_bytes_, sender.rank, frame.total);
    }
    return average_.quit();
  }
  switch (sender.shares.received(share_id(frame), frame, payload, intact || frame.length == 0)) {
    case Inbox::Chunk::partial:
      return;
    case Inbox::Chunk::damaged:
      return average_.trouble(sender.rank);
    case Inbox::Chunk::last:
      break;
  }
  auto share =
      std::static_pointer_cast<std::vector<std::byte>>(sender.shares.take(share_id(frame)).room.owner);
  if (!share) share = std::make_shared<std::vector<std::byte>>();  // no values at all
  average_.share(sender.rank, frame.round, frame.block, frame.step, std::move(share));
}

void Exchange::received_join(Peer& sender, const Frame& frame, bool intact) {
  if (frame.length != (peers_.size() + 7) / 8) return;
  if (!intact) return average_.trouble(sender.rank);
  if (frame.round > average_.id()) {
    // It has left the steps for an average: rounds that it has not started will not come before I am there too.
    sender.averaging = {frame.round, frame.value};
    give_up_on(sender, frame.value + 1);
  }
  average_.joined(sender.rank, frame.round, frame.block, from_bits(sender.join, transport_->size()));
}

void Exchange::Averaging::send_join(int to, std::uint64_t id, std::uint32_t attempt,
                                    const std::set<int>& participants) {
  auto bits = std::make_shared<std::vector<std::byte>>(to_bits(participants, exchange.transport_->size()));
  Frame frame;
  frame.type = FrameType::join;
  frame.round = id;
  frame.block = attempt;
  frame.value = exchange.next_round() - 1;
  const std::span<const std::byte> bytes(*bits);
  exchange.transport_->send(to, frame, {std::move(bits), bytes});
}

void Exchange::Averaging::send_share(int to, std::uint64_t id, std::uint32_t attempt, std::uint32_t step,
                                     Bytes share) {
  Frame frame;
  frame.type = FrameType::share;
  frame.round = id;
  frame.block = attempt;
  frame.step = step;
  const std::span<const std::byte> bytes(*share);
  exchange.transport_->send(to, frame, {std::move(share), bytes});
}

void Exchange::Averaging::send_done(int to, std::uint64_t id, std::uint32_t attempt, bool ended) {
  exchange.control(to, FrameType::done, id, attempt, ended ? 1 : 0);
}

void Exchange::Averaging::send_quit(int to, std::uint64_t id) {
  exchange.control(to, FrameType::quit, id, 0, 0);
}

void Exchange::Averaging::averaged(Bytes values, const std::set<int>& participants) {
  for (const auto& peer : exchange.peers_) {
    if (peer->averaging && peer->averaging->first <= exchange.average_.id()) peer->averaging.reset();
    peer->shares.clear();
  }
  const std::lock_guard lock(exchange.mutex_);
  exchange.averaged_ = {std::move(values), participants};
  exchange.changed_->notify_all();
}

}  // namespace starling
