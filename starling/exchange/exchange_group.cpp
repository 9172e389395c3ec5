// The buffers and frames of an exchange within a group; its protocol is Group's.
#include <algorithm>

#include <fmt/format.h>

#include "starling/exchange/exchange.h"
#include "starling/kernels/update.h"
#include "starling/transport/outbox.h"

namespace starling {
namespace {

// Of `size` values, the shard of the k-th of g members.
std::pair<std::size_t, std::size_t> cut(std::size_t size, std::size_t k, std::size_t g) {
  const std::size_t from = size * k / g;
  return {from, size * (k + 1) / g - from};
}

// From the next higher rank on, so that all send to different ones at a time.
std::vector<Link> from_next(std::vector<Link> others, int rank) {
  const auto next = std::ranges::find_if(others, [&](const Link& link) { return link.rank > rank; });
  std::rotate(others.begin(), next, others.end());
  return others;
}

}  // namespace

const std::vector<int>& Exchange::Grouping::members(SwapId id) const {
  return exchange.meeting(id.round).group;
}

bool Exchange::Grouping::member(int rank, const Frame& frame) const {
  if (frame.round == 0 || frame.block >= exchange.blocks_.size()) return false;
  const std::vector<int>& group = members({frame.round, frame.block});
  return std::binary_search(group.begin(), group.end(), rank);
}

std::pair<std::size_t, std::size_t> Exchange::Grouping::shard(SwapId id, int rank) const {
  const std::vector<int>& group = members(id);
  const auto k = std::lower_bound(group.begin(), group.end(), rank) - group.begin();
  return cut(exchange.values(id), static_cast<std::size_t>(k), group.size());
}

void Exchange::Grouping::begin(SwapId id, std::shared_ptr<const Buffer> mine, bool finite) {
  std::set<int> others(members(id).begin(), members(id).end());
  others.erase(exchange.transport_->rank());
  const bool all_here = std::all_of(others.begin(), others.end(), [&](int rank) {
    const Peer& other = exchange.peer(rank);
    return other.present(id.round) && !other.absent;
  });
  open[id] = {std::move(mine), exchange.transport_->buffer(exchange.values(id) * sizeof(float)), {}, finite};
  protocol.start(id, std::move(others), all_here && finite, exchange.sending(id));
  exchange.hold(id);
}

void Exchange::Grouping::send_parts(SwapId id) {
  const Swap& swap = open.at(id);
  for (const Link& link : from_next(exchange.meeting(id.round).links, exchange.transport_->rank())) {
    const auto [from, count] = shard(id, link.rank);
    send_payload(link.rank, exchange.frame_of(FrameType::part, id, exchange.wire_),
                 payload_of(swap.mine, bytes_of(exchange.wire_, from), bytes_of(exchange.wire_, count)));
  }
}

// mean = mine + Sum_j (theirs_j - mine) / g over my shard, by rising rank. Where all agree it is what they agree on, to
// the bit.
void Exchange::Grouping::send_mean(SwapId id) {
  const Swap& swap = open.at(id);
  const std::vector<Link>& others = exchange.meeting(id.round).links;
  const auto [from, count] = shard(id, exchange.transport_->rank());
  const kernels::Sent mine(swap.mine->data() + bytes_of(exchange.wire_, from), exchange.wire_);
  float* const mean = floats_of(*swap.mean).data() + from;
  std::fill(mean, mean + count, 0.0F);
  zeros.resize(std::max(zeros.size(), count));
  std::vector<kernels::Mix> mixes{{1, mine, zeros.data()}};
  std::vector<Incoming> parts;  // keeps them until the mean is taken
  for (const Link& link : others) {
    parts.push_back(std::move(exchange.peer(link.rank).parts.extract(id).mapped()));
    mixes.push_back({1.0F / static_cast<float>(others.size() + 1), parts.back().block.values(), mine});
  }
  kernels::update(kernels::Step{}, mixes, mean, nullptr, {}, {}, count);

  for (const Link& link : from_next(others, exchange.transport_->rank())) {
    send_payload(link.rank, exchange.frame_of(FrameType::mean, id, Wire::fp32),
                 payload_of(swap.mean, sizeof(float) * from, sizeof(float) * count));
  }
}

// Small ones overtake the large ones by themselves.
bool Exchange::Grouping::in_turn(SwapId id, std::size_t bytes) const {
  return members(id).size() > InTurn::kAtOnce + 1 && bytes > Outbox::kMaxControl;
}

void Exchange::Grouping::send_payload(int to, const Frame& frame, const Payload& payload) {
  if (in_turn({frame.round, frame.block}, payload.bytes.size())) {
    turns.add(to, frame, payload);
  } else {
    exchange.transport_->send(to, frame, payload);
  }
}

void Exchange::Grouping::disconnected(int rank) {
  turns.disconnected(rank);
  protocol.disconnected(rank);
}

void Exchange::Grouping::cancel(SwapId id) {
  turns.cancel(id);
  for (const Link& link : exchange.meeting(id.round).links) {
    for (const FrameType type : {FrameType::part, FrameType::mean})
      exchange.transport_->cancel(link.rank, type, id.round, id.block);
  }
}

void Exchange::Grouping::send(int to, FrameType type, SwapId id, bool yes) {
  const bool behind = type == FrameType::group_abort && yes;
  exchange.control(to, type, id.round, id.block, behind ? exchange.next_round() : yes);
}

void Exchange::Grouping::decided(SwapId id, Outcome outcome, bool in_pairs) {
  Swap swap = std::move(open.extract(id).mapped());
  if (outcome == Outcome::in_doubt) turns.hurry(id);  // the others may still need it
  const std::vector<Link>& others = exchange.meeting(id.round).links;
  for (const Link& link : others) exchange.peer(link.rank).parts.erase(id);
  exchange.release();
  if (in_pairs) {
    {
      const std::lock_guard lock(exchange.mutex_);
      exchange.blocks_[id.block].open += static_cast<int>(others.size());
    }
    exchange.begin_pairs(id, swap.mine, swap.finite);
  } else {
    for (const Link& link : others) {
      Peer& other = exchange.peer(link.rank);
      other.edge.settle(id);
      other.incoming.erase(id);
      if (auto span = other.spans.extract(id)) span.mapped().outcome(name_of(outcome));
    }
  }

  const std::lock_guard lock(exchange.mutex_);
  Block& block = exchange.blocks_[id.block];
  if (outcome == Outcome::committed) {
    exchange.statistics_.committed += others.size();
    block.arrived.push_back({members(id).front(),
                             1,
                             {payload_of(swap.mean), Wire::fp32, exchange.mask(id)},
                             {payload_of(swap.mine), exchange.wire_, exchange.mask(id)},
                             id.round});
  } else if (!in_pairs) {
    exchange.statistics_.aborted += others.size();
  }
  if (outcome == Outcome::in_doubt) doubts[id] = std::move(swap);
  if (--block.open == 0) exchange.changed_->notify_all();
}

void Exchange::Grouping::mended(SwapId id, bool committed) {
  Swap swap = std::move(doubts.extract(id).mapped());
  if (!committed || !swap.mean) return;
  const std::lock_guard lock(exchange.mutex_);
  exchange.statistics_.late += members(id).size() - 1;
  exchange.blocks_[id.block].mended.push_back({members(id).front(),
                                               1,
                                               {payload_of(swap.mean), Wire::fp32, exchange.mask(id)},
                                               {payload_of(swap.mine), exchange.wire_, exchange.mask(id)},
                                               id.round});
}

// Of a frame whose sender is a member, and which has the right size.
bool Exchange::Grouping::expects_part(const Peer& sender, const Frame& frame) const {
  const SwapId id{frame.round, frame.block};
  if (!protocol.wants_part(sender.rank, id)) return false;
  return sender.parts.contains(id) || sender.parts.size() < kEarly * exchange.blocks_.size();
}

// As Exchange's.
bool Exchange::Grouping::received_in_place(Peer& sender, const Frame& frame, const Payload& payload) {
  if (!member(sender.rank, frame)) return false;
  const SwapId id{frame.round, frame.block};
  const std::size_t bytes = bytes_of(exchange.wire_, shard(id, exchange.transport_->rank()).second);
  if (!exchange.fits(frame, bytes, exchange.wire_)) return false;
  if (!expects_part(sender, frame) || sender.parts.contains(id)) return false;
  SentBlock block(payload, exchange.wire_);
  if (!block.may_be_read()) return false;
  sender.heard = exchange.transport_->now();
  exchange.mark_present(sender);
  sender.parts[id] = {nullptr, bytes, std::move(block)};
  say_got(sender.rank, frame);
  protocol.part(sender.rank, id, true);
  return true;
}

std::span<std::byte> Exchange::Grouping::place(Peer& sender, const Frame& frame) {
  if (!member(sender.rank, frame)) return {};
  const SwapId id{frame.round, frame.block};
  const bool part = frame.type == FrameType::part;
  const auto [from, count] = shard(id, part ? exchange.transport_->rank() : sender.rank);
  const Wire wire = part ? exchange.wire_ : Wire::fp32;
  if (!exchange.fits(frame, bytes_of(wire, count), wire)) return {};
  if (part) {
    if (!expects_part(sender, frame)) return {};
    Incoming& in = sender.parts[id];
    if (!in.buffer) in.buffer = exchange.pool_.take(frame.total);
    if (frame.offset != in.bytes) return {};
    sender.placed = in.buffer;
    return std::span(*in.buffer).subspan(frame.offset, frame.length);
  }
  if (!protocol.wants_mean(sender.rank, id)) return {};
  Swap& swap = open.at(id);
  if (frame.offset != swap.bytes[sender.rank]) return {};
  sender.placed = swap.mean;
  return std::span(*swap.mean).subspan(from * sizeof(float) + frame.offset, frame.length);
}

// Of a part or mean, whatever becomes of it.
void Exchange::Grouping::say_got(int from, const Frame& frame) {
  if (in_turn({frame.round, frame.block}, frame.total)) {
    exchange.control(from, FrameType::group_got, frame.round, frame.block, frame.type == FrameType::mean);
  }
}

void Exchange::Grouping::received(Peer& sender, const Frame& frame, std::span<const std::byte> payload,
                                  bool intact) {
  if (!member(sender.rank, frame)) return;
  const bool bulk = frame.type == FrameType::part || frame.type == FrameType::mean;
  if (bulk && frame.offset + frame.length == frame.total) say_got(sender.rank, frame);
  if (frame.round > exchange.horizon()) return;
  const SwapId id{frame.round, frame.block};
  switch (frame.type) {
    case FrameType::group_ready:
      exchange.mark_present(sender);
      break;
    case FrameType::part:
      return received_part(sender, frame, payload, intact);
    case FrameType::mean:
      return received_mean(sender, frame, payload, intact);
    case FrameType::group_got:
      return turns.arrived(sender.rank, frame.value != 0 ? FrameType::mean : FrameType::part, id);
    case FrameType::group_ack:
      sender.owes_vote.reset();
      break;
    case FrameType::group_abort:
      sender.owes_vote.reset();
      exchange.is_at(sender.rank, frame.value);
      if (frame.value == 0 || protocol.past(id)) break;
      for (const Link& link : exchange.meeting(id.round).links)
        exchange.went_on(link.rank, true);  // whoever did not give up on me was told that the group is off
      break;
    default:
      break;
  }
  protocol.frame(sender.rank, frame.type, id, frame.value != 0);
}

void Exchange::Grouping::received_part(Peer& sender, const Frame& frame, std::span<const std::byte> payload,
                                       bool intact) {
  const SwapId id{frame.round, frame.block};
  exchange.mark_present(sender);
  if (!protocol.wants_part(sender.rank, id)) {
    if (protocol.past(id) && frame.offset + frame.length == frame.total)
      protocol.part(sender.rank, id, false);  // tells it that I went on
    return;
  }
  const std::size_t bytes = bytes_of(exchange.wire_, shard(id, exchange.transport_->rank()).second);
  if (!intact || !exchange.fits(frame, bytes, exchange.wire_) ||
      !kernels::all_finite(payload, exchange.wire_)) {
    exchange.say_damaged(sender.rank, frame);
    sender.parts.erase(id);
    return protocol.part(sender.rank, id, false);
  }
  Incoming& in = sender.parts[id];
  if (!in.buffer) in.buffer = exchange.pool_.take(0);  // of a block with fewer values than members
  in.bytes += frame.length;
  if (in.bytes != bytes) return;
  in.block = {payload_of(in.buffer), exchange.wire_};
  protocol.part(sender.rank, id, true);
}

void Exchange::Grouping::received_mean(Peer& sender, const Frame& frame, std::span<const std::byte> payload,
                                       bool intact) {
  const SwapId id{frame.round, frame.block};
  if (!protocol.wants_mean(sender.rank, id)) return;
  const std::size_t bytes = shard(id, sender.rank).second * sizeof(float);
  if (!intact || !exchange.fits(frame, bytes, Wire::fp32) || !kernels::all_finite(payload, Wire::fp32)) {
    exchange.say_damaged(sender.rank, frame);
    return protocol.mean(sender.rank, id, false);
  }
  std::size_t& here = open.at(id).bytes[sender.rank];
  here += frame.length;
  if (here == bytes) protocol.mean(sender.rank, id, true);
}

}  // namespace starling
