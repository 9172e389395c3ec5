#include "starling/exchange/edge_swaps.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "starling/core/failpoint.h"

namespace starling {
namespace {

// The given part of a swap.
Arrival given_of(const Arrival& swap, float given) {
  return {.rank = swap.rank, .mine = swap.mine, .round = swap.round, .given = given};
}

}  // namespace

EdgeSwaps::EdgeSwaps(const SwapTools& tools, bool pushes) : tools_(tools), pushes_(pushes) {
  for (int rank = 0; rank < tools.transport.size(); ++rank)
    edges_.push_back(std::make_unique<Swaps>(*this, rank));
}

EdgeSwaps::Swaps::Swaps(EdgeSwaps& all, int rank)
    : all(all), tools(all.tools_), rank(rank), inbox(edge, tools.early_blocks(), tools.layout.wire()) {}

void EdgeSwaps::begin(SwapId id, const std::shared_ptr<const Buffer>& mine, bool finite) {
  const Meeting& meeting = tools_.meetings.at(id.round);
  for (const Partner& partner : meeting.partners) {
    Swaps& with = at(partner.rank);
    with.open[id] = {partner.rank, partner.direction.receive ? partner.weight : 0,
                     {},           {payload_of(mine), tools_.layout.wire(), tools_.layout.mask(id)},
                     id.round,     pushes_ ? partner.given : 0};
    // A group did not wait for an absent member.
    const bool left_out = meeting.in_group() && tools_.links.absent(partner.rank);
    if (present(partner.rank, id.round) && !left_out) {
      const SentBlock* const early = finite ? with.inbox.whole(id) : nullptr;
      const bool usable = finite && !(early != nullptr && jumps(with, id, *early));
      with.edge.start(id, partner.direction, usable, tools_.layout.sending(id));
    } else {
      with.edge.pass(id, partner.direction);
    }
  }
  tools_.holdback.add(id, tools_.layout, tools_.meetings);
}

void EdgeSwaps::begin_spans(SwapId id) {
  if (!tools_.timeline) return;
  for (const Partner& partner : tools_.meetings.at(id.round).partners) {
    const Timeline::Span span{
        .name = "exchange", .block = static_cast<int>(id.block), .peer = partner.rank, .round = id.round};
    at(partner.rank).spans.try_emplace(id, tools_.timeline.get(), span);
  }
}

void EdgeSwaps::settle(SwapId id, Outcome outcome) {
  for (const Partner& partner : tools_.meetings.at(id.round).partners) {
    Swaps& with = at(partner.rank);
    with.edge.settle(id);
    with.inbox.drop(id);
    if (auto span = with.spans.extract(id)) span.mapped().outcome(name_of(outcome));
  }
}

void EdgeSwaps::skip_to(std::uint64_t round) {
  for (const auto& swaps : edges_) {
    swaps->edge.skip(round);
    swaps->inbox.drop_before(round);
  }
}

void EdgeSwaps::forget_doubts() {
  for (const auto& swaps : edges_) {
    for (auto& [id, arrival] : swaps->doubts) arrival.weight = arrival.given = 0;
  }
}

void EdgeSwaps::disconnected(int rank) {
  at(rank).edge.disconnected();
  at(rank).inbox.clear();
}

bool EdgeSwaps::moves_before(std::uint64_t round) const {
  return std::ranges::any_of(edges_, [&](const auto& swaps) { return swaps->edge.moves_before(round); });
}

void EdgeSwaps::release(SwapId id) {
  for (const auto& swaps : edges_) swaps->edge.release(id);
}

// ---------------------------------------------------------------- actions of an edge

void EdgeSwaps::Swaps::send_block(SwapId id) {
  tools.transport.send(rank, tools.layout.frame(FrameType::data, id, tools.layout.wire()),
                       open.at(id).mine.block);
  failpoint("send");
}

void EdgeSwaps::Swaps::cancel_block(SwapId id) {
  tools.transport.cancel(rank, FrameType::data, id.round, id.block);
}

void EdgeSwaps::Swaps::decided(SwapId id, Outcome outcome) {
  if (auto span = spans.extract(id)) span.mapped().outcome(name_of(outcome));
  Arrival arrival = std::move(open.extract(id).mapped());
  arrival.theirs = inbox.take(id);
  const bool sends_only = arrival.weight == 0, gives = arrival.given != 0;
  tools.release();
  if (outcome == Outcome::committed) {
    tools.guard.committed(rank, id.block);
    const bool of_use = !sends_only || gives;
    return tools.ledger.committed(id, of_use ? std::optional(std::move(arrival)) : std::nullopt);
  }
  std::optional<Arrival> given;
  if (outcome == Outcome::in_doubt) {
    if (gives) given = given_of(arrival, arrival.given);
    doubts[id] = std::move(arrival);
  }
  tools.ledger.aborted(id, std::move(given), 1, sends_only && !all.pushes_);
}

void EdgeSwaps::Swaps::mended(SwapId id, bool committed) {
  Arrival arrival = std::move(doubts.extract(id).mapped());
  if (!committed) arrival = given_of(arrival, -arrival.given);
  if (committed) arrival.given = 0;  // it has been given
  if (arrival.weight == 0 && arrival.given == 0) return;
  tools.ledger.mended(id, std::move(arrival), committed ? 1 : 0);
}

// ---------------------------------------------------------------- arrivals

// A chunk of a block that may still be mixed, of the right size, and not too early.
bool EdgeSwaps::expects(const Swaps& sender, const Frame& frame) const {
  if (frame.block >= tools_.layout.blocks()) return false;
  const SwapId id{frame.round, frame.block};
  return tools_.layout.fits(frame, tools_.layout.bytes(id), tools_.layout.wire()) &&
         sender.inbox.may_take(id);
}

bool EdgeSwaps::jumps(const Swaps& sender, SwapId id, const SentBlock& theirs) const {
  const auto steps = [&] { return id.round; };
  return tools_.guard.refuses(sender.rank, sender.open, id, steps, theirs, tools_.layout.parameters(id));
}

std::span<std::byte> EdgeSwaps::place(int from, const Frame& frame) {
  Swaps& sender = at(from);
  if (!expects(sender, frame)) return {};
  return sender.inbox.place({frame.round, frame.block}, frame, pool_);
}

// A damaged block comes again, in chunks, and is refused there. The sender's word vouches for
// finite values: it sends no others.
bool EdgeSwaps::received_in_place(int from, const Frame& frame, const Payload& payload) {
  Swaps& sender = at(from);
  const SwapId id{frame.round, frame.block};
  if (!expects(sender, frame) || sender.inbox.contains(id)) return false;
  SentBlock block(payload, tools_.layout.wire(), tools_.layout.mask(id));
  if (!tools_.layout.may_be_read(id, block)) return false;
  tools_.links.heard(from);
  tools_.links.mark_present(from);
  const bool good = !jumps(sender, id, block);
  sender.inbox.put(id, std::move(block), good);
  return true;
}

void EdgeSwaps::received_chunk(int from, const Frame& frame, std::span<const std::byte> chunk, bool intact) {
  if (frame.block >= tools_.layout.blocks()) return;
  Swaps& sender = at(from);
  const SwapId id{frame.round, frame.block};
  tools_.links.mark_present(from);
  const auto flaw = [&](const SentBlock& block) {
    if (!tools_.layout.may_be_read(id, block)) return EdgeInbox::kDamaged;
    return jumps(sender, id, block) ? EdgeInbox::kJumps : std::string_view();
  };
  const bool sound = intact && expects(sender, frame);
  if (sender.inbox.received(id, frame, chunk, sound, flaw, tools_.layout.mask(id)) == EdgeInbox::kDamaged)
    tools_.warn_of_damage(from, frame);
}

void EdgeSwaps::received_word(int from, const Frame& frame) {
  const SwapId id{frame.round, frame.block};
  Swaps& sender = at(from);
  sender.edge.frame(frame.type, id, frame.value != 0);
  if (frame.type == FrameType::abort && !sender.edge.wants(id)) sender.inbox.drop(id);
}

}  // namespace starling
