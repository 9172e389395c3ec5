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
  return cut(exchange.layout_.values(id), static_cast<std::size_t>(k), group.size());
}

void Exchange::Grouping::begin(SwapId id, std::shared_ptr<const Buffer> mine, bool finite) {
  std::set<int> others(members(id).begin(), members(id).end());
  others.erase(exchange.transport_->rank());
  const bool all_here = std::all_of(others.begin(), others.end(), [&](int rank) {
    const Peer& other = exchange.peer(rank);
    return other.present(id.round) && !other.absent;
  });
  open[id] = {std::move(mine), exchange.transport_->buffer(exchange.layout_.values(id) * sizeof(float)),
              finite};
  protocol.start(id, std::move(others), all_here && finite, exchange.layout_.sending(id));
  exchange.hold(id);
}

void Exchange::Grouping::send_parts(SwapId id) {
  const Swap& swap = open.at(id);
  for (const Link& link : from_next(exchange.meeting(id.round).links, exchange.transport_->rank())) {
    const auto [from, count] = shard(id, link.rank);
    send_payload(link.rank, exchange.layout_.frame(FrameType::part, id, exchange.layout_.wire()),
                 payload_of(swap.mine, bytes_of(exchange.layout_.wire(), from),
                            bytes_of(exchange.layout_.wire(), count)));
  }
}

// mean = mine + Sum_j (theirs_j - mine) / g over my shard, by rising rank. Where all agree it is what they agree on, to
// the bit.
void Exchange::Grouping::send_mean(SwapId id) {
  const Swap& swap = open.at(id);
  const std::vector<Link>& others = exchange.meeting(id.round).links;
  const auto [from, count] = shard(id, exchange.transport_->rank());
  const kernels::Sent mine(swap.mine->data() + bytes_of(exchange.layout_.wire(), from),
                           exchange.layout_.wire());
  float* const mean = floats_of(*swap.mean).data() + from;
  std::fill(mean, mean + count, 0.0F);
  zeros.resize(std::max(zeros.size(), count));
  std::vector<kernels::Mix> mixes{{1, mine, zeros.data()}};
  std::vector<SentBlock> parts;  // keeps them until the mean is taken
  for (const Link& link : others) {
    parts.push_back(exchange.peer(link.rank).parts.take(id).block);
    mixes.push_back({1.0F / static_cast<float>(others.size() + 1), parts.back().values(), mine});
  }
  kernels::update(kernels::SgdStep{}, mixes, mean, nullptr, {}, {}, count);

  for (const Link& link : from_next(others, exchange.transport_->rank())) {
    send_payload(link.rank, exchange.layout_.frame(FrameType::mean, id, Wire::fp32),
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
  for (const Link& link : others) {
    exchange.peer(link.rank).parts.drop(id);
    exchange.peer(link.rank).means.drop(id);
  }
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
      other.blocks.drop(id);
      if (auto span = other.spans.extract(id)) span.mapped().outcome(name_of(outcome));
    }
  }

  const std::lock_guard lock(exchange.mutex_);
  Block& block = exchange.blocks_[id.block];
  if (outcome == Outcome::committed) {
    exchange.statistics_.committed += others.size();
    block.arrived.push_back({members(id).front(),
                             1,
                             {payload_of(swap.mean), Wire::fp32, exchange.layout_.mask(id)},
                             {payload_of(swap.mine), exchange.layout_.wire(), exchange.layout_.mask(id)},
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
  exchange.blocks_[id.block].mended.push_back(
      {members(id).front(),
       1,
       {payload_of(swap.mean), Wire::fp32, exchange.layout_.mask(id)},
       {payload_of(swap.mine), exchange.layout_.wire(), exchange.layout_.mask(id)},
       id.round});
}

// Of a frame whose sender is a member, and which has the right size.
bool Exchange::Grouping::expects_part(const Peer& sender, const Frame& frame) const {
  const SwapId id{frame.round, frame.block};
  if (!protocol.wants_part(sender.rank, id)) return false;
  return sender.parts.may_take(id);
}

// As Exchange's.
bool Exchange::Grouping::received_in_place(Peer& sender, const Frame& frame, const Payload& payload) {
  if (!member(sender.rank, frame)) return false;
  const SwapId id{frame.round, frame.block};
  const std::size_t bytes = bytes_of(exchange.layout_.wire(), shard(id, exchange.transport_->rank()).second);
  if (!exchange.layout_.fits(frame, bytes, exchange.layout_.wire())) return false;
  if (!expects_part(sender, frame) || sender.parts.contains(id)) return false;
  SentBlock block(payload, exchange.layout_.wire());
  if (!block.may_be_read()) return false;
  sender.heard = exchange.transport_->now();
  exchange.mark_present(sender);
  sender.parts.put(id, std::move(block));
  say_got(sender.rank, frame);
  protocol.part(sender.rank, id, true);
  return true;
}

std::span<std::byte> Exchange::Grouping::place(Peer& sender, const Frame& frame) {
  if (!member(sender.rank, frame)) return {};
  const SwapId id{frame.round, frame.block};
  const bool part = frame.type == FrameType::part;
  const auto [from, count] = shard(id, part ? exchange.transport_->rank() : sender.rank);
  const Wire wire = part ? exchange.layout_.wire() : Wire::fp32;
  if (!exchange.layout_.fits(frame, bytes_of(wire, count), wire)) return {};
  if (part) {
    if (!expects_part(sender, frame)) return {};
    return sender.parts.place(id, frame, [&] { return exchange.room(frame.total); });
  }
  if (!protocol.wants_mean(sender.rank, id)) return {};
  return sender.means.place(id, frame, [&, from = from]() -> Inbox::Room {
    const std::shared_ptr<Buffer>& mean = open.at(id).mean;
    return {mean, std::span(*mean).subspan(from * sizeof(float), frame.total)};
  });
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
  const std::size_t bytes = bytes_of(exchange.layout_.wire(), shard(id, exchange.transport_->rank()).second);
  const bool sound = intact && exchange.layout_.fits(frame, bytes, exchange.layout_.wire());
  const Inbox::Chunk chunk = sender.parts.received(id, frame, payload, sound);
  if (chunk == Inbox::Chunk::partial) return;
  if (chunk == Inbox::Chunk::damaged) {
    exchange.say_damaged(sender.rank, frame);
    return protocol.part(sender.rank, id, false);
  }
  sender.parts.read(id, exchange.layout_.wire());
  protocol.part(sender.rank, id, true);
}

void Exchange::Grouping::received_mean(Peer& sender, const Frame& frame, std::span<const std::byte> payload,
                                       bool intact) {
  const SwapId id{frame.round, frame.block};
  if (!protocol.wants_mean(sender.rank, id)) return;
  const std::size_t bytes = shard(id, sender.rank).second * sizeof(float);
  const bool sound = intact && exchange.layout_.fits(frame, bytes, Wire::fp32);
  const Inbox::Chunk chunk = sender.means.received(id, frame, payload, sound);
  if (chunk == Inbox::Chunk::damaged) exchange.say_damaged(sender.rank, frame);
  if (chunk != Inbox::Chunk::partial) protocol.mean(sender.rank, id, chunk == Inbox::Chunk::last);
}

}  // namespace starling
