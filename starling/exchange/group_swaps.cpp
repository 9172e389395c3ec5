#include "starling/exchange/group_swaps.h"

#include <algorithm>
#include <optional>
#include <set>

#include "starling/core/failpoint.h"
#include "starling/kernels/update.h"
#include "starling/transport/outbox.h"

namespace starling {
namespace {

// From the next higher rank on, so that all send to different ones at a time.
std::vector<Partner> from_next(std::vector<Partner> others, int rank) {
  const auto next = std::ranges::find_if(others, [&](const Partner& other) { return other.rank > rank; });
  std::rotate(others.begin(), next, others.end());
  return others;
}

}  // namespace

GroupSwaps::GroupSwaps(const SwapTools& tools, EdgeSwaps& edges)
    : tools_(tools),
      edges_(edges),
      me_(tools.transport.rank()),
      turns_([this](int to, const Frame& frame,
                    const Payload& payload) { tools_.transport.send(to, frame, payload); },
             [this] { return tools_.transport.now(); }) {
  for (int rank = 0; rank < tools.transport.size(); ++rank)
    senders_.push_back({.parts = Inbox(tools.early_blocks(), tools.layout.wire())});
}

bool GroupSwaps::member(int rank, const Frame& frame) const {
  if (frame.round == 0 || frame.block >= tools_.layout.blocks()) return false;
  return std::ranges::binary_search(members({frame.round, frame.block}), rank);
}

GroupSwaps::Shard GroupSwaps::shard(SwapId id, int rank) const {
  const std::vector<int>& group = members(id);
  const std::size_t values = tools_.layout.values(id), g = group.size();
  const auto k = static_cast<std::size_t>(std::ranges::lower_bound(group, rank) - group.begin());
  const std::size_t from = values * k / g;
  return {from, values * (k + 1) / g - from};
}

void GroupSwaps::begin(SwapId id, std::shared_ptr<const Buffer> mine, bool finite) {
  std::set<int> others(members(id).begin(), members(id).end());
  others.erase(me_);
  const bool all_here = std::ranges::all_of(
      others, [&](int rank) { return edges_.present(rank, id.round) && !tools_.links.absent(rank); });
  open_[id] = {std::move(mine), tools_.transport.buffer(tools_.layout.values(id) * sizeof(float)), finite};
  protocol_.start(id, std::move(others), all_here && finite, tools_.layout.sending(id));
  tools_.holdback.add(id, tools_.layout, tools_.meetings);
}

void GroupSwaps::skip_to(std::uint64_t round) {
  for (Sender& sender : senders_) sender.parts.drop_before(round);
  protocol_.skip(round);
}

void GroupSwaps::forget_doubts() {
  for (auto& [id, swap] : doubts_) swap.mean.reset();
}

void GroupSwaps::disconnected(int rank) {
  sender(rank).parts.clear();
  sender(rank).means.clear();
  turns_.disconnected(rank);
  protocol_.disconnected(rank);
}

// ---------------------------------------------------------------- actions of the group

void GroupSwaps::send_parts(SwapId id) {
  const Wire wire = tools_.layout.wire();
  const Swap& swap = open_.at(id);
  for (const Partner& to : from_next(others(id), me_)) {
    const auto [from, count] = shard(id, to.rank);
    send_payload(to.rank, tools_.layout.frame(FrameType::part, id, wire),
                 payload_of(swap.mine, bytes_of(wire, from), bytes_of(wire, count)));
  }
}

// mean = mine + Sum_j (theirs_j - mine) / g over my shard, by rising rank. If all agree, it is
// what they agree on, to the bit.
void GroupSwaps::send_mean(SwapId id) {
  const Wire wire = tools_.layout.wire();
  const Swap& swap = open_.at(id);
  const auto [from, count] = shard(id, me_);
  const kernels::Sent mine(swap.mine->data() + bytes_of(wire, from), wire);
  float* const mean = floats_of(*swap.mean).data() + from;
  std::fill(mean, mean + count, 0.0F);
  zeros_.resize(std::max(zeros_.size(), count));
  std::vector<kernels::Mix> mixes{{1, mine, zeros_.data()}};
  std::vector<SentBlock> parts;  // keeps them until the mean is taken
  for (const Partner& other : others(id)) {
    parts.push_back(sender(other.rank).parts.take(id).block);
    mixes.push_back({1.0F / static_cast<float>(others(id).size() + 1), parts.back().values(), mine});
  }
  kernels::update(kernels::Step{}, mixes, mean, nullptr, {}, {}, count);

  for (const Partner& to : from_next(others(id), me_))
    send_payload(to.rank, tools_.layout.frame(FrameType::mean, id, Wire::fp32),
                 payload_of(swap.mean, sizeof(float) * from, sizeof(float) * count));
}

// Small ones overtake the large ones by themselves.
bool GroupSwaps::in_turn(SwapId id, std::size_t bytes) const {
  return members(id).size() > InTurn::kAtOnce + 1 && bytes > Outbox::kMaxControl;
}

void GroupSwaps::send_payload(int to, const Frame& frame, const Payload& payload) {
  if (in_turn({frame.round, frame.block}, payload.bytes.size())) {
    turns_.add(to, frame, payload);
  } else {
    tools_.transport.send(to, frame, payload);
  }
  failpoint("send");
}

void GroupSwaps::cancel(SwapId id) {
  turns_.cancel(id);
  for (const Partner& to : others(id)) {
    for (const FrameType type : {FrameType::part, FrameType::mean})
      tools_.transport.cancel(to.rank, type, id.round, id.block);
  }
}

void GroupSwaps::decided(SwapId id, Outcome outcome, bool in_pairs) {
  Swap swap = std::move(open_.extract(id).mapped());
  if (outcome == Outcome::in_doubt) turns_.hurry(id);  // the others may still need it
  const std::size_t swaps = others(id).size();
  for (const Partner& other : others(id)) {
    sender(other.rank).parts.drop(id);
    sender(other.rank).means.drop(id);
  }
  tools_.release();
  if (in_pairs) {
    tools_.ledger.add_open(id, swaps);
    edges_.begin(id, swap.mine, swap.finite);
  } else {
    edges_.settle(id, outcome);
  }
  if (outcome == Outcome::committed) return tools_.ledger.committed(id, arrival_of(id, swap), swaps);
  if (outcome == Outcome::in_doubt) doubts_[id] = std::move(swap);
  tools_.ledger.aborted(id, std::nullopt, in_pairs ? 0 : swaps);
}

void GroupSwaps::mended(SwapId id, bool committed) {
  const Swap swap = std::move(doubts_.extract(id).mapped());
  if (committed && swap.mean) tools_.ledger.mended(id, arrival_of(id, swap), members(id).size() - 1);
}

Arrival GroupSwaps::arrival_of(SwapId id, const Swap& swap) const {
  const Mask mask = tools_.layout.mask(id);
  return {.rank = members(id).front(),
          .weight = 1,
          .theirs = {payload_of(swap.mean), Wire::fp32, mask},
          .mine = {payload_of(swap.mine), tools_.layout.wire(), mask},
          .round = id.round,
          .of_group = true};
}

// ---------------------------------------------------------------- arrivals

bool GroupSwaps::fits_part(const Frame& frame) const {
  const Wire wire = tools_.layout.wire();
  return tools_.layout.fits(frame, bytes_of(wire, shard({frame.round, frame.block}, me_).count), wire);
}

bool GroupSwaps::fits_mean(int from, const Frame& frame) const {
  const std::size_t values = shard({frame.round, frame.block}, from).count;
  return tools_.layout.fits(frame, values * sizeof(float), Wire::fp32);
}

// A part that may still be mixed, of the right size, and not too early.
bool GroupSwaps::expects_part(int from, const Frame& frame) const {
  const SwapId id{frame.round, frame.block};
  return fits_part(frame) && protocol_.wants_part(from, id) && sender(from).parts.may_take(id);
}

bool GroupSwaps::received_in_place(int from, const Frame& frame, const Payload& payload) {
  if (!member(from, frame)) return false;
  const SwapId id{frame.round, frame.block};
  Inbox& parts = sender(from).parts;
  if (!expects_part(from, frame) || parts.contains(id)) return false;
  SentBlock block(payload, tools_.layout.wire());
  if (!block.may_be_read()) return false;
  tools_.links.heard(from);
  tools_.links.mark_present(from);
  parts.put(id, std::move(block));
  say_got(from, frame);
  protocol_.part(from, id, true);
  return true;
}

std::span<std::byte> GroupSwaps::place(int from, const Frame& frame) {
  if (!member(from, frame)) return {};
  const SwapId id{frame.round, frame.block};
  if (frame.type == FrameType::part) {
    if (!expects_part(from, frame)) return {};
    return sender(from).parts.place(id, frame, [&] { return room_of(pool_, frame.total); });
  }
  if (!fits_mean(from, frame) || !protocol_.wants_mean(from, id)) return {};
  return sender(from).means.place(id, frame, [&]() -> Inbox::Room {
    const std::shared_ptr<Buffer>& mean = open_.at(id).mean;
    return {mean, std::span(*mean).subspan(shard(id, from).from * sizeof(float), frame.total)};
  });
}

// Confirms a part or mean, intact or not.
void GroupSwaps::say_got(int to, const Frame& frame) {
  if (!in_turn({frame.round, frame.block}, frame.total)) return;
  tools_.transport.send(to, {.type = FrameType::group_got,
                             .round = frame.round,
                             .block = frame.block,
                             .value = frame.type == FrameType::mean});
}

void GroupSwaps::received(int from, const Frame& frame, std::span<const std::byte> chunk, bool intact) {
  if (!member(from, frame)) return;
  const bool bulk = frame.type == FrameType::part || frame.type == FrameType::mean;
  if (bulk && frame.offset + frame.length == frame.total) say_got(from, frame);
  const SwapId id{frame.round, frame.block};
  switch (frame.type) {
    case FrameType::group_ready:
      tools_.links.mark_present(from);
      break;
    case FrameType::part:
      return received_part(from, frame, chunk, intact);
    case FrameType::mean:
      return received_mean(from, frame, chunk, intact);
    case FrameType::group_got:
      return turns_.arrived(from, frame.value != 0 ? FrameType::mean : FrameType::part, id);
    case FrameType::group_ack:
      tools_.links.has_voted(from);
      break;
    case FrameType::group_abort:
      tools_.links.has_voted(from);
      tools_.rounds.is_at(from, frame.value);
      if (frame.value == 0 || protocol_.past(id)) break;
      // Members that did not give up on me were told that the group is off.
      for (const std::set<int> there = tools_.links.there(); const Partner& other : others(id)) {
        if (there.contains(other.rank)) tools_.rounds.went_on(other.rank);
      }
      break;
    default:
      break;
  }
  protocol_.frame(from, frame.type, id, frame.value != 0);
}

void GroupSwaps::received_part(int from, const Frame& frame, std::span<const std::byte> chunk, bool intact) {
  const SwapId id{frame.round, frame.block};
  tools_.links.mark_present(from);
  if (!protocol_.wants_part(from, id)) {
    if (protocol_.past(id) && frame.offset + frame.length == frame.total)
      protocol_.part(from, id, false);  // tells it that I went on
    return;
  }
  Inbox& parts = sender(from).parts;
  const Inbox::Chunk come = parts.received(id, frame, chunk, intact && fits_part(frame));
  if (come == Inbox::Chunk::partial) return;
  const bool good = come == Inbox::Chunk::last;
  if (good) parts.read(id, tools_.layout.wire());
  if (!good) tools_.warn_of_damage(from, frame);
  protocol_.part(from, id, good);
}

void GroupSwaps::received_mean(int from, const Frame& frame, std::span<const std::byte> chunk, bool intact) {
  const SwapId id{frame.round, frame.block};
  if (!protocol_.wants_mean(from, id)) return;
  const Inbox::Chunk come = sender(from).means.received(id, frame, chunk, intact && fits_mean(from, frame));
  if (come == Inbox::Chunk::damaged) tools_.warn_of_damage(from, frame);
  if (come != Inbox::Chunk::partial) protocol_.mean(from, id, come == Inbox::Chunk::last);
}

}  // namespace starling
