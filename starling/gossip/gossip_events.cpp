// Gossip on the transport's thread: what pairing, edges and the transport tell it.
#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "starling/core/failpoint.h"
#include "starling/gossip/gossip.h"
#include "starling/kernels/update.h"

namespace starling {
namespace {

// Averagings that control frames may be ahead, or a number beyond those for which there was time.
constexpr std::uint64_t kHorizon = 1000;
constexpr std::size_t kEarly = 2;  // averagings whose blocks are kept before I have begun them
// Bytes sent between two ticks that are more than heartbeats.
constexpr std::uint64_t kMoves = 1 << 16;

}  // namespace

// ---------------------------------------------------------------- actions of pairing

void Gossip::Actions::ask(int peer, std::uint64_t number) {
  gossip.peer(peer).asked = gossip.transport_->now();
  gossip.transport_->send(peer, {.type = FrameType::ask, .round = number}, gossip.gradients_made());
}

void Gossip::Actions::answer(int peer, std::uint64_t number, Answer answer) {
  gossip.transport_->send(
      peer, {.type = FrameType::answer, .round = number, .value = static_cast<std::uint8_t>(answer)},
      gossip.gradients_made());
}

void Gossip::Actions::begin(int rank, std::uint64_t number, bool i_asked) {
  const Direction direction = gossip.algorithm_.direction(i_asked);
  Peer& peer = gossip.peer(rank);
  gossip.monitor_.locked([&] { ++gossip.counted(rank).begun; });
  const bool gives_all = i_asked && gossip.hands_over_;
  gossip.averaging_ = Averaging{.peer = rank,
                                .number = number,
                                .receives = direction.receive,
                                .gives_all = gives_all,
                                .undecided = gossip.blocks_.size()};
  gossip.note_progress();
  gossip.span_.emplace(gossip.timeline_.get(),
                       Timeline::Span{.name = "averaging", .peer = rank, .round = number});
  bool all_finite = true;
  for (std::uint32_t b = 0; b < gossip.blocks_.size(); ++b) {
    const SwapId id{number, b};
    LockedBlock& block = *gossip.blocks_[b];
    auto mine = gossip.transport_->buffer(gossip.bytes(b));
    Trailer trailer{.exponent = peer.grids[b].next()};
    kernels::WireBlock sent{mine->data(), gossip.options_.wire};
    sent.exponent = trailer.exponent;
    sent.sum = &trailer.sum;
    bool finite = true;
    {
      const std::lock_guard lock(block.mutex);
      finite = gossip.algorithm_.send(*block.held, gossip.momentum_to_now(block), sent, gives_all);
    }
    all_finite &= finite;
    set_trailer(std::span(*mine).first(gossip.bytes(b)), gossip.options_.wire, trailer);
    peer.open[id] = {.mine = SentBlock(payload_of(std::move(mine)), gossip.options_.wire),
                     .theirs = {},
                     .direction = direction};
    const SentBlock* const early = finite ? peer.inbox.whole(id) : nullptr;
    peer.edge.start(id, direction, finite && !(early != nullptr && gossip.jumps(peer, id, *early)));
  }
  if (gossip.finite_.exchange(all_finite) && !all_finite)
    gossip.log_(Level::warning, fmt::format("this worker's parameters are not finite in averaging {} with "
                                            "worker {}: its neighbours go on without it until they are",
                                            number, rank));
}

void Gossip::Actions::refuse(int rank, std::uint64_t number) {
  for (std::uint32_t b = 0; b < gossip.blocks_.size(); ++b)
    gossip.peer(rank).edge.pass({number, b}, gossip.algorithm_.direction(true));
}

void Gossip::Actions::wake(std::uint64_t alarm, Duration after) {
  gossip.transport_->at(gossip.transport_->now() + after, [this, alarm] {
    gossip.pairing_.alarm(alarm);
    gossip.update_pairing();
  });
}

void Gossip::end_averaging() {
  const Averaging ended = *averaging_;
  const bool whole = ended.committed == blocks_.size();
  averaging_.reset();
  span_->outcome(whole ? "committed" : ended.committed > 0 ? "committed in part" : "aborted");
  span_.reset();
  if (whole && ended.gives_all) heirs_.clear();
  if (whole) {
    const std::lock_guard lock(monitor_.mutex);
    GossipStatistics::Neighbour& with = counted(ended.peer);
    ++statistics_.averaged;
    ++with.averaged;
    std::uint64_t& before = peer(ended.peer).gradients;
    const std::uint64_t gap = statistics_.gradients - before;
    with.longest_gap = std::max(with.longest_gap, gap);
    before = statistics_.gradients;
    if (timeline_) timeline_->add({.name = "gap", .peer = ended.peer, .value = static_cast<double>(gap)});
    if (ended.receives) {
      ++with.received;
      with.distance = std::sqrt(ended.squared_distance / static_cast<double>(values_));
      if (timeline_) timeline_->add({.name = "distance", .peer = ended.peer, .value = with.distance});
    }
  }
  pairing_.ended();
  update_pairing();
}

void Gossip::note_progress() {
  averaging_->sent = transport_->bytes_sent();
  const std::lock_guard lock(monitor_.mutex);
  moved_ = transport_->now();
}

void Gossip::update_pairing() {
  hand_over();
  const std::lock_guard lock(monitor_.mutex);
  statistics_.pairing = pairing_.statistics();
  idle_ = pairing_.idle();
  monitor_.changed->notify_all();
}

// ---------------------------------------------------------------- actions of an edge

Gossip::Peer::Peer(Gossip& gossip, int rank, bool neighbour)
    : gossip(gossip),
      rank(rank),
      neighbour(neighbour),
      edge(*this),
      inbox(edge, kEarly * gossip.blocks_.size(), gossip.options_.wire) {}

void Gossip::Peer::send_block(SwapId id) {
  gossip.transport_->send(rank,
                          {.type = FrameType::data,
                           .dtype = static_cast<std::uint8_t>(gossip.options_.wire),
                           .round = id.round,
                           .block = id.block},
                          open.at(id).mine.block);
  failpoint("send");
}

void Gossip::Peer::cancel_block(SwapId id) {
  gossip.transport_->cancel(rank, FrameType::data, id.round, id.block);
}

void Gossip::Peer::send(FrameType type, SwapId id, bool yes) {
  if (type == FrameType::ack) failpoint("vote");
  gossip.transport_->send(rank, {.type = type, .round = id.round, .block = id.block, .value = yes});
}

void Gossip::Peer::decided(SwapId id, Outcome outcome) {
  auto node = open.extract(id);
  SentBlock theirs = inbox.take(id);
  if (node.empty()) return;  // for an averaging that I have refused
  Swap swap = std::move(node.mapped());
  double distance = 0;
  swap.theirs = std::move(theirs);
  outcome == Outcome::aborted ? gossip.take_back(id.block, swap) : gossip.give(id.block, swap);
  if (outcome == Outcome::committed) {
    gossip.guard_.committed(rank, id.block);
    if (swap.direction.receive) {
      gossip.take(*this, id.block, swap, false);
      distance = kernels::best_kernels().squared_distance(swap.theirs.values(), swap.mine.values(),
                                                          gossip.sizes_[id.block]);
    }
  } else {
    gossip.monitor_.locked([&] { ++gossip.counted(rank).aborted; });
  }
  if (outcome == Outcome::in_doubt) doubts[id] = std::move(swap);
  auto& averaging = gossip.averaging_;
  // Given up before.
  if (!averaging || averaging->peer != rank || averaging->number != id.round) return;
  if (outcome == Outcome::committed) {
    ++averaging->committed;
    averaging->squared_distance += distance;
  }
  if (--averaging->undecided == 0) gossip.end_averaging();
}

void Gossip::Peer::mended(SwapId id, bool committed) {
  Swap swap = std::move(doubts.extract(id).mapped());
  if (!committed) return gossip.take_back(id.block, swap);
  if (swap.direction.receive) gossip.take(*this, id.block, swap, true);
  gossip.monitor_.locked([&] { ++gossip.counted(rank).late; });
}

// ---------------------------------------------------------------- x and x~

void Gossip::take(Peer& peer, std::size_t index, const Swap& swap, bool late) {
  if (!swap.counts) return;
  LockedBlock& block = *blocks_[index];
  kernels::Measured measured;
  {
    const std::lock_guard lock(block.mutex);
    measured = algorithm_.take(*block.held, momentum_to_now(block), swap.theirs, swap.mine, late);
    block.credit = std::min(block.credit + 1 / own_rate_, most_credit());
  }
  Grid::Wanted wanted;
  wanted.add(options_.wire, swap.theirs.trailer, swap.mine.trailer, measured);
  peer.grids[index].follow(wanted);
}

void Gossip::give(std::size_t index, Swap& swap) {
  if (!swap.direction.send || std::exchange(swap.given, true) || !swap.counts) return;
  const std::lock_guard lock(blocks_[index]->mutex);
  algorithm_.give(*blocks_[index]->held, swap.mine);
}

void Gossip::take_back(std::size_t index, Swap& swap) {
  if (!std::exchange(swap.given, false) || !swap.counts) return;
  const std::lock_guard lock(blocks_[index]->mutex);
  algorithm_.take_back(*blocks_[index]->held, swap.mine);
}

double Gossip::momentum_to_now(LockedBlock& block) const {
  const Time now = transport_->now();
  const double passed = gradient_seconds_ == 0 ? 0 : seconds(now - block.mixed) / gradient_seconds_;
  const double tau = std::min(passed, block.credit);
  block.mixed = now;
  block.credit -= tau;
  return algorithm_.eta() * tau;
}

// ---------------------------------------------------------------- events

void Gossip::connected(int rank) {
  links_.heard(rank);
  peer(rank).edge.connected();
  pairing_.up(rank);
  links_.connected(rank);
}

void Gossip::disconnected(int rank, const std::string& reason) {
  links_.disconnected(rank, reason);
  // First: the edge's decisions now end the averaging, and nothing new begins with it.
  pairing_.down(rank);
  peer(rank).edge.disconnected();
  peer(rank).inbox.clear();
  update_pairing();
}

// The optimizer's exchange, which is connected with all workers, reports the loss.
void Gossip::lost(int rank, const std::string& reason) {
  log_(Level::info, fmt::format("worker {} is gone ({}): gossip goes on without it", rank, reason));
  guard_.lost(rank);
  links_.never_met(rank, reason);
}

bool Gossip::expects(const Peer& peer, const Frame& frame) const {
  if (!peer.neighbour || frame.block >= blocks_.size() || frame.total != bytes(frame.block) ||
      frame.dtype != static_cast<std::uint8_t>(options_.wire))
    return false;
  return peer.inbox.may_take({frame.round, frame.block});
}

std::span<std::byte> Gossip::place(int from, const Frame& frame) {
  Peer& sender = peer(from);
  if (frame.type == FrameType::ask || frame.type == FrameType::answer) {
    sender.made.assign(made_.size(), 0);
    const auto room = std::as_writable_bytes(std::span(sender.made));
    return sender.neighbour && frame.offset == 0 && frame.length == room.size() ? room
                                                                                : std::span<std::byte>();
  }
  if (frame.type != FrameType::data || !expects(sender, frame)) return {};
  return sender.inbox.place({frame.round, frame.block}, frame, pool_);
}

void Gossip::received(int from, const Frame& frame, std::span<const std::byte> payload, bool intact) {
  Peer& sender = peer(from);
  links_.heard(from);
  if (!sender.neighbour) return;
  // The number of an averaging is at most two higher than the last one's on its edge.
  if (frame.round > 2 * monitor_.countable() + kHorizon)
    return links_.refuse(from, fmt::format("averaging {}", frame.round));
  if (averaging_ && averaging_->peer == from && averaging_->number == frame.round) note_progress();
  switch (frame.type) {
    case FrameType::ask:
      if (intact) learn_gradients(sender);
      pairing_.asked(from, frame.round);
      return update_pairing();
    case FrameType::answer:
      if (intact) learn_gradients(sender);
      if (sender.asked) pairing_.answer_took(from, transport_->now() - *std::exchange(sender.asked, {}));
      if (frame.value <= static_cast<std::uint8_t>(Answer::no))
        pairing_.answered(from, frame.round, static_cast<Answer>(frame.value));
      return update_pairing();
    case FrameType::data:
      return received_data(sender, frame, payload, intact);
    case FrameType::jumps:
      return guard_.was_refused(from, {frame.round, frame.block}, jump_distance(frame), frame.step != 0);
    case FrameType::ack:
    case FrameType::abort:
    case FrameType::skip:
    case FrameType::query:
    case FrameType::outcome:
      if (frame.block < blocks_.size() && frame.round <= pairing_.number(from) + kHorizon)
        sender.edge.frame(frame.type, {frame.round, frame.block}, frame.value != 0);
      return;
    default:
      return;  // heartbeats, and frames of an exchange
  }
}

// The payload of each request and answer.
Payload Gossip::gradients_made() const {
  const std::lock_guard lock(monitor_.mutex);
  const auto made = std::make_shared<const std::vector<std::uint64_t>>(made_);
  return {made, std::as_bytes(std::span(*made))};
}

void Gossip::learn_gradients(const Peer& peer) {
  const std::uint64_t most = monitor_.countable() + kHorizon;
  if (std::ranges::any_of(peer.made, [&](std::uint64_t made) { return made > most; })) return;
  const std::lock_guard lock(monitor_.mutex);
  for (std::size_t rank = 0; rank < peer.made.size(); ++rank) {
    if (static_cast<int>(rank) != transport_->rank()) made_[rank] = std::max(made_[rank], peer.made[rank]);
  }
}

void Gossip::received_data(Peer& peer, const Frame& frame, std::span<const std::byte> payload, bool intact) {
  if (frame.block >= blocks_.size()) return;
  const SwapId id{frame.round, frame.block};
  const auto flaw = [&](const SentBlock& sent) {
    const std::string_view wrong = algorithm_.flaw(sent, sizes_[id.block]);
    return wrong.empty() && jumps(peer, id, sent) ? EdgeInbox::kJumps : wrong;
  };
  const std::string_view wrong =
      peer.inbox.received(id, frame, payload, intact && expects(peer, frame), flaw);
  if (wrong.empty() || wrong == EdgeInbox::kJumps) return;  // the guard has said so
  log_(Level::warning, wrong == EdgeInbox::kDamaged
                           ? damage(peer.rank, frame, "averaging")
                           : fmt::format("worker {} sent block {} in averaging {} {}: not mixed", peer.rank,
                                         frame.block, frame.round, wrong));
}

bool Gossip::jumps(const Peer& peer, SwapId id, const SentBlock& theirs) {
  const auto gradients = [this] { return monitor_.locked([this] { return statistics_.gradients; }); };
  return guard_.refuses(peer.rank, peer.open, id, gradients, theirs, sizes_[id.block]);
}

// Sends heartbeats, and ends averagings that take too long.
void Gossip::tick() {
  const Time now = transport_->now();
  links_.tick([this](int rank, const std::string& why) {
    // Once I have voted, only the peer decides, or a connection that breaks.
    if (!peer(rank).edge.open().empty()) transport_->reset(rank, why);
  });
  if (averaging_ && transport_->bytes_sent() > averaging_->sent + kMoves) note_progress();
  const Duration still = monitor_.locked([&] { return now - moved_; });
  if (averaging_ && still > options_.patience) {
    Peer& late = peer(averaging_->peer);
    const std::uint64_t number = averaging_->number;
    log_(Level::info, fmt::format("averaging {} with worker {} is given up: nothing has moved for {:.1f} s",
                                  number, late.rank, seconds(still)));
    for (const SwapId id : late.edge.open()) {
      if (id.round == number) late.edge.give_up(id);
    }
    // Swaps that I have voted for are decided later, and the next averaging does not wait for them.
    // Their gifts are no longer mine.
    for (auto& [id, swap] : late.open) {
      if (id.round == number) give(id.block, swap);
    }
    if (averaging_ && averaging_->peer == late.rank && averaging_->number == number) end_averaging();
  }
  transport_->at(now + std::min(options_.silent / 10, options_.patience / 4), [this] { tick(); });
}

GossipStatistics::Neighbour& Gossip::counted(int rank) {
  return *std::ranges::find(statistics_.neighbours, rank, &GossipStatistics::Neighbour::rank);
}

}  // namespace starling
