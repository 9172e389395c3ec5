#include "starling/exchange/exchange.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starling/core/error.h"
#include "starling/kernels/update.h"
#include "starling/topology/traffic.h"

namespace starling {
namespace {

constexpr std::uint64_t kFarthestJump = std::uint64_t{1} << 32;
// Neighbours may be a round ahead at any time: whoever jumped then would leave out a round that the others, who are not
// ahead, wait for.
constexpr std::uint64_t kSlack = 1;

std::vector<Meeting> meetings_of(const Schedule& schedule, int me, bool groups) {
  std::vector<Meeting> rounds;
  for (const Graph& graph : schedule.rounds) {
    std::map<int, Link> links;
    for (const Neighbour& from : graph.neighbours[static_cast<std::size_t>(me)]) {
      links[from.rank] = {from.rank, static_cast<float>(from.weight), 0, {.send = false, .receive = true}};
    }
    for (int to = 0; to < graph.workers(); ++to) {
      for (const Neighbour& from : graph.neighbours[static_cast<std::size_t>(to)]) {
        if (from.rank != me) continue;
        Link& link = links.try_emplace(to, Link{to, 0, 0, {.send = true, .receive = false}}).first->second;
        link.given = static_cast<float>(from.weight);
        link.direction.send = true;
      }
    }
    Meeting& round = rounds.emplace_back();
    for (const auto& [rank, link] : links) round.links.push_back(link);
    if (!groups) continue;
    for (const auto& group : averaging_groups(graph)) {
      if (std::find(group.begin(), group.end(), me) != group.end()) round.group = group;
    }
  }
  return rounds;
}

std::set<int> neighbours_of(const std::vector<Meeting>& rounds) {
  std::set<int> neighbours;
  for (const Meeting& round : rounds) {
    for (const Link& link : round.links) neighbours.insert(link.rank);
  }
  return neighbours;
}

// Of a swap only what is given in it.
Arrival given_of(const Arrival& swap, float given) {
  return {.rank = swap.rank, .mine = swap.mine, .round = swap.round, .given = given};
}

Timeline::Span exchange_span(SwapId id, int peer) {
  return {.name = "exchange", .block = static_cast<int>(id.block), .peer = peer, .round = id.round};
}

}  // namespace

ExchangeStatistics& ExchangeStatistics::operator+=(const ExchangeStatistics& more) {
  rounds += more.rounds;
  skipped_rounds += more.skipped_rounds;
  committed += more.committed;
  aborted += more.aborted;
  late += more.late;
  directed_aborted += more.directed_aborted;
  bytes_sent += more.bytes_sent;
  bytes_in_place += more.bytes_in_place;
  seconds_waiting += more.seconds_waiting;
  lost.insert(more.lost.begin(), more.lost.end());
  return *this;
}

// ---------------------------------------------------------------- the training thread

Exchange::Exchange(std::unique_ptr<Transport> transport, const Schedule& schedule,
                   std::vector<std::size_t> block_sizes, ExchangeOptions options)
    : meetings_(meetings_of(schedule, transport->rank(), options.contents.has_mean())),
      neighbours_(neighbours_of(meetings_)),
      patience_(std::move(options.patience)),
      log_(std::move(options.log)),
      timeline_(std::move(options.timeline)),
      pushes_(options.contents.exchanged == Exchanged::pushes),
      layout_(options.contents, std::move(block_sizes), meetings_.size()),
      grouping_(*this),
      averaging_(*this),
      average_(transport->rank(), averaging_),
      changed_(transport->condition()),
      blocks_(layout_.blocks()),
      transport_(std::move(transport)) {
  for (int rank = 0; rank < transport_->size(); ++rank) peers_.push_back(std::make_unique<Peer>(*this, rank));
  transport_->start(*this);
  transport_->post([this] {
    ticked_ = transport_->now();
    tick();
  });
}

Exchange::~Exchange() {
  transport_->post([this] {
    for (const auto& peer : peers_) {
      if (peer->met) control(peer->rank, FrameType::leave, 0, 0, 0);
    }
  });
  transport_->stop();
}

bool Exchange::wait(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds patience,
                    const std::function<bool()>& done) {
  return starling::wait(
      *changed_, lock, [this] { return transport_->now(); }, patience, patience_.interrupted, done);
}

void Exchange::open() {
  for (const auto& peer : peers_) {
    if (peer->rank != transport_->rank()) transport_->open(peer->rank);
  }
}

void Exchange::meet() {
  const Time begin = transport_->now();
  open();
  std::unique_lock lock(mutex_);
  const auto all_here = [&] {
    return std::includes(met_.begin(), met_.end(), neighbours_.begin(), neighbours_.end());
  };
  if (wait(lock, patience_.meet, all_here)) return;
  std::vector<int> missing;
  std::set_difference(neighbours_.begin(), neighbours_.end(), met_.begin(), met_.end(),
                      std::back_inserter(missing));
  throw Error(fmt::format(
      "worker {}: no connection to worker{} {} after {:.1f} s: is it running, and is its port open?",
      transport_->rank(), missing.size() == 1 ? "" : "s", fmt::join(missing, ", "),
      seconds(transport_->now() - begin)));
}

std::span<const Arrival> Exchange::finish(int index) {
  const Timeline::Scope span(timeline_.get(), {.name = "wait", .block = index});
  const Time begin = transport_->now();
  std::unique_lock lock(mutex_);
  Block& block = blocks_[static_cast<std::size_t>(index)];
  const auto decided = [&] { return block.open == 0; };
  if (!decided() && !absent_.empty()) {
    transport_->post([this, index] { give_up(static_cast<std::uint32_t>(index), {}); });
  }
  auto patience = patience_.max_wait.value_or(patience_.stalled);
  while (!wait(lock, patience, decided)) {
    // Those that I voted for are still to be waited for: their vote comes, or their connection breaks.
    transport_->post([this, index, waited = seconds(transport_->now() - begin)] {
      give_up(static_cast<std::uint32_t>(index), fmt::format("no block after {:.1f} s", waited));
    });
    patience = patience_.max_wait.value_or(patience_.silent);
  }
  statistics_.seconds_waiting += seconds(transport_->now() - begin);
  std::sort(block.arrived.begin(), block.arrived.end(),
            [](const Arrival& a, const Arrival& b) { return a.rank < b.rank; });
  block.finished = std::move(block.arrived);
  block.arrived.clear();
  std::move(block.mended.begin(), block.mended.end(), std::back_inserter(block.finished));
  block.mended.clear();
  return block.finished;
}

Outgoing Exchange::wire(int index) {
  std::unique_lock lock(mutex_);
  if (started_ == blocks_.size() || round_ == 0) begin_round(lock);
  const SwapId id{round_, static_cast<std::uint32_t>(index)};
  const Meeting& now = meeting(round_);
  if (now.links.empty() && now.group.empty()) return {{nullptr, layout_.wire()}, layout_.mask(id)};
  lock.unlock();
  auto buffer = transport_->buffer(layout_.bytes(id));
  lock.lock();
  Block& block = blocks_[id.block];
  block.next = std::move(buffer);
  return {{block.next->data(), layout_.wire()}, layout_.mask(id)};
}

// The word that a neighbour went on is as old as my absence: what it is at now, it has to be asked. Such words may still come
// meanwhile.
void Exchange::catch_up(std::unique_lock<std::mutex>& lock) {
  if (went_on_.empty()) return;
  const Time begin = transport_->now();
  std::set<int> asked;
  const auto all_have_said = [&] {
    for (const int rank : went_on_) {
      if (!connected_.contains(rank) || !asked.insert(rank).second) continue;
      transport_->post([this, rank] { control(rank, FrameType::where, 0, 0, 0); });
    }
    return went_on_.empty();
  };
  wait(lock, patience_.max_wait.value_or(patience_.silent), all_have_said);
  went_on_.clear();
  statistics_.seconds_waiting += seconds(transport_->now() - begin);
}

void Exchange::begin_round(std::unique_lock<std::mutex>& lock) {
  catch_up(lock);
  const std::uint64_t next = std::max(round_ + 1, jump_to_);
  jumped_ = next > round_ + 1;
  statistics_.skipped_rounds += next - round_ - 1;
  ++statistics_.rounds;
  round_ = next;
  started_ = 0;
}

void Exchange::start(int index, bool finite) {
  const std::lock_guard lock(mutex_);
  Block& block = blocks_[static_cast<std::size_t>(index)];
  block.finished.clear();
  const Meeting& now = meeting(round_);
  block.open = now.group.empty() ? static_cast<int>(now.links.size()) : 1;
  ++started_;
  if (block.open > 0) {  // else nobody needs to know
    transport_->post([this, index, round = round_, mine = std::move(block.next), finite] {
      begin_swaps(index, round, mine, finite);
    });
  }
  block.next.reset();
  // Only now is every swap of the last round decided, on all blocks.
  if (jumped_ && started_ == blocks_.size()) transport_->post([this, round = round_] { skip_to(round); });
}

std::uint64_t Exchange::position(bool in_flight) const {
  const std::lock_guard lock(mutex_);
  return (in_flight ? round_ - 1 : round_) % layout_.cycle();
}

std::uint64_t Exchange::round() const {
  const std::lock_guard lock(mutex_);
  return round_;
}

void Exchange::restart(std::uint64_t position) {
  for (std::size_t b = 0; b < blocks_.size(); ++b) finish(static_cast<int>(b));
  transport_->post([this] {
    for (const auto& peer : peers_) {
      for (auto& [id, arrival] : peer->doubts)
        arrival.weight = arrival.given = 0;  // if it is mended, that is of no use any more
    }
    for (auto& [id, swap] : grouping_.doubts) swap.mean.reset();
  });
  // All have finished what was in flight once this returns, and agree on the farthest.
  auto farthest = static_cast<std::int64_t>(next_round() - 1);
  maximum({&farthest, 1});
  const std::lock_guard lock(mutex_);
  for (Block& block : blocks_) {
    block.finished.clear();
    block.mended.clear();
  }
  round_ = static_cast<std::uint64_t>(farthest);
  while (round_ % layout_.cycle() != position % layout_.cycle()) ++round_;
  started_ = blocks_.size();
  jump_to_ = 0;  // where the others were before is of no use any more
  went_on_.clear();
}

std::set<int> Exchange::lost() const {
  const std::lock_guard lock(mutex_);
  return gone_;
}

ExchangeStatistics Exchange::statistics() const {
  const std::lock_guard lock(mutex_);
  ExchangeStatistics statistics = statistics_;
  statistics.bytes_sent = transport_->bytes_sent();
  statistics.bytes_in_place = transport_->bytes_in_place();
  statistics.lost = gone_;
  return statistics;
}

std::uint64_t Exchange::next_round() const {
  const std::lock_guard lock(mutex_);
  return round_ + 1;
}

// ---------------------------------------------------------------- the transport's thread: swaps

bool Exchange::Peer::present(std::uint64_t round) const {
  const bool silent = exchange.ticked_ - heard > exchange.patience_.silent;
  return edge.up() && !silent && !left && (!averaging || round <= averaging->second);
}

void Exchange::begin_swaps(int index, std::uint64_t round, std::shared_ptr<const Buffer> mine, bool finite) {
  const SwapId id{round, static_cast<std::uint32_t>(index)};
  const Meeting& now = meeting(round);
  if (timeline_) {
    for (const Link& link : now.links)
      peer(link.rank).spans.try_emplace(id, timeline_.get(), exchange_span(id, link.rank));
  }
  if (now.group.empty()) {
    begin_pairs(id, mine, finite);
  } else {
    grouping_.begin(id, std::move(mine), finite);
  }
}

void Exchange::begin_pairs(SwapId id, const std::shared_ptr<const Buffer>& mine, bool finite) {
  for (const Link& link : meeting(id.round).links) {
    Peer& neighbour = peer(link.rank);
    neighbour.open[id] = {link.rank, link.direction.receive ? link.weight : 0,
                          {},        {payload_of(mine), layout_.wire(), layout_.mask(id)},
                          id.round,  pushes_ ? link.given : 0};
    const bool left_out =
        neighbour.absent && !meeting(id.round).group.empty();  // the group did not wait for it
    if (neighbour.present(id.round) && !left_out) {
      neighbour.edge.start(id, link.direction, finite, layout_.sending(id));
    } else {
      neighbour.edge.pass(id, link.direction);
    }
  }
  hold(id);
}

// Where all are waited for it goes as soon as it may.
void Exchange::hold(SwapId id) {
  if (layout_.sending(id) == Sending::when_all_are_ready) held_.insert(id);
  release();
}

// The last round goes first: two at once would each delay the other, and the last one is waited for. Where every round is of one
// and the same group, its links keep that order by themselves.
void Exchange::release() {
  const bool one_group = meetings_.size() == 1 && !meetings_.front().group.empty();
  std::erase_if(held_, [&](SwapId id) {
    const auto moves = [&](const auto& peer) { return peer->edge.moves_before(id.round); };
    if (!one_group && (std::ranges::any_of(peers_, moves) || grouping_.protocol.moves_before(id.round)))
      return false;
    for (const auto& peer : peers_) peer->edge.release(id);
    grouping_.protocol.release(id);
    return true;
  });
}

void Exchange::skip_to(std::uint64_t round) {
  for (const auto& peer : peers_) {
    peer->edge.skip(round);
    peer->blocks.drop_before(round);
    peer->parts.drop_before(round);
  }
  grouping_.protocol.skip(round);
}

void Exchange::Peer::send_block(SwapId id) {
  exchange.transport_->send(rank, exchange.layout_.frame(FrameType::data, id, exchange.layout_.wire()),
                            open.at(id).mine.block);
}

void Exchange::Peer::cancel_block(SwapId id) {
  exchange.transport_->cancel(rank, FrameType::data, id.round, id.block);
}

void Exchange::Peer::send(FrameType type, SwapId id, bool yes) {
  // An abort because I went on without the peer tells it where I am.
  const bool behind = type == FrameType::abort && yes;
  exchange.control(rank, type, id.round, id.block, behind ? exchange.next_round() : yes);
}

void Exchange::Peer::decided(SwapId id, Outcome outcome) {
  if (auto span = spans.extract(id)) span.mapped().outcome(name_of(outcome));
  auto node = open.extract(id);
  Arrival arrival = std::move(node.mapped());
  arrival.theirs = blocks.take(id).block;
  const bool sends_only = arrival.weight == 0, gives = arrival.given != 0;
  exchange.release();
  const std::lock_guard lock(exchange.mutex_);
  Block& block = exchange.blocks_[id.block];
  if (outcome == Outcome::committed) {
    ++exchange.statistics_.committed;
    if (!sends_only || gives) block.arrived.push_back(std::move(arrival));
  } else {
    ++exchange.statistics_.aborted;
    if (sends_only && !exchange.pushes_) ++exchange.statistics_.directed_aborted;
    if (outcome == Outcome::in_doubt) {
      if (gives) block.arrived.push_back(given_of(arrival, arrival.given));
      doubts[id] = std::move(arrival);
    }
  }
  if (--block.open == 0) exchange.changed_->notify_all();
}

void Exchange::Peer::mended(SwapId id, bool committed) {
  auto node = doubts.extract(id);
  Arrival arrival = std::move(node.mapped());
  if (!committed) arrival = given_of(arrival, -arrival.given);
  if (committed) arrival.given = 0;  // it has been given
  if (arrival.weight == 0 && arrival.given == 0) return;
  const std::lock_guard lock(exchange.mutex_);
  if (committed) ++exchange.statistics_.late;
  exchange.blocks_[id.block].mended.push_back(std::move(arrival));
}

// Of those that still owe me this block: all, or (without a reason) the absent ones only.
void Exchange::give_up(std::uint32_t block, const std::string& why) {
  for (const auto& each : peers_) {
    Peer& late = *each;
    if (why.empty() && !late.absent) continue;
    for (const SwapId id : late.edge.open()) {
      if (id.block != block) continue;
      if (late.edge.give_up(id)) {
        mark_absent(late, why);
      } else {
        wait_for_vote(late);
      }
    }
  }
  give_up_groups(block, why);  // after the edges: it goes on over them
}

void Exchange::give_up_groups(std::uint32_t block, const std::string& why) {
  Group& groups = grouping_.protocol;
  for (const SwapId id : groups.open()) {
    if (id.block != block) continue;
    const std::set<int> late = groups.not_started(id);
    const bool absent = std::any_of(late.begin(), late.end(), [&](int rank) { return peer(rank).absent; });
    if (why.empty() && !absent) continue;
    for (const int rank : late) {
      if (!why.empty()) mark_absent(peer(rank), why);
    }
    const std::set<int> owing = groups.not_voted(id);
    if (groups.give_up(id)) continue;
    for (const int rank : owing) wait_for_vote(peer(rank));
  }
}

// I have voted: only its vote or a broken connection can decide.
void Exchange::wait_for_vote(Peer& late) {
  if (!late.owes_vote) {
    late.owes_vote = transport_->now();
  } else if (transport_->now() - *late.owes_vote > patience_.silent) {
    transport_->reset(late.rank, "it does not answer a vote");
  }
}

// What I can give up of the swaps from this round on.
void Exchange::give_up_on(Peer& left, std::uint64_t from_round) {
  for (const SwapId id : left.edge.open()) {
    if (id.round >= from_round) left.edge.give_up(id);
  }
  for (const SwapId id : grouping_.protocol.open()) {
    if (id.round >= from_round && grouping_.protocol.waits_for(id, left.rank)) grouping_.protocol.give_up(id);
  }
}

bool Exchange::waits_for(const Peer& other) const {
  const auto groups = grouping_.protocol.open();
  return !other.edge.open().empty() || std::any_of(groups.begin(), groups.end(), [&](SwapId id) {
    return grouping_.protocol.waits_for(id, other.rank);
  });
}

void Exchange::mark_absent(Peer& late, const std::string& why) {
  if (late.absent) return;
  late.absent = true;
  if (!late.left)
    log_(Level::warning, fmt::format("worker {} is late ({}): going on without it", late.rank, why));
  const std::lock_guard lock(mutex_);
  absent_.insert(late.rank);
}

// It has spoken.
void Exchange::mark_present(Peer& back) {
  if (!back.absent) return;
  back.absent = false;
  log_(Level::info, fmt::format("worker {} is back in the mix", back.rank));
  control(back.rank, FrameType::resume, 0, 0, next_round());
  const std::lock_guard lock(mutex_);
  absent_.erase(back.rank);
}

// Who is past a round in which we meet goes on without me. Others may be far ahead: they do not wait for me.
void Exchange::is_at(int rank, std::uint64_t round) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t next = round_ + 1;
  if (round <= next + kSlack || round - next >= kFarthestJump) return;
  const std::uint64_t end = std::min(round - kSlack, next + meetings_.size());
  for (std::uint64_t missed = next; missed < end; ++missed) {
    if (std::ranges::find(meeting(missed).links, rank, &Link::rank) == meeting(missed).links.end()) continue;
    jump_to_ = std::max(jump_to_, round);
    return;
  }
}

void Exchange::went_on(int rank, bool without_me) {
  const std::lock_guard lock(mutex_);
  if (without_me ? went_on_.insert(rank).second : went_on_.erase(rank) != 0) changed_->notify_all();
}

// ---------------------------------------------------------------- the transport's thread: events

void Exchange::control(int to, FrameType type, std::uint64_t round, std::uint32_t block,
                       std::uint64_t value) {
  Frame frame;
  frame.type = type;
  frame.round = round;
  frame.block = block;
  frame.value = value;
  transport_->send(to, frame);
}

void Exchange::say_alive(int to) {
  const auto now = transport_->now().time_since_epoch().count();
  control(to, FrameType::heartbeat, 0, 0, static_cast<std::uint64_t>(now));
}

void Exchange::connected(int rank) {
  Peer& back = peer(rank);
  back.heard = transport_->now();
  back.owes_vote.reset();
  back.edge.connected();
  grouping_.protocol.connected(rank);
  if (back.met && !back.absent) control(rank, FrameType::resume, 0, 0, next_round());
  mark_present(back);
  back.met = true;
  say_alive(rank);
  average_.up(rank);
  std::unique_lock lock(mutex_);
  connected_.insert(rank);
  met_.insert(rank);
  const bool was_gone = gone_.erase(rank) != 0;
  changed_->notify_all();
  lock.unlock();
  if (was_gone) log_(Level::warning, fmt::format("worker {} is back", rank));
}

void Exchange::disconnected(int rank, const std::string& reason) {
  Peer& broken = peer(rank);
  broken.edge.disconnected();
  broken.blocks.clear();
  broken.parts.clear();
  broken.means.clear();
  broken.shares.clear();
  grouping_.disconnected(rank);
  if (!broken.left) log_(Level::info, fmt::format("connection to worker {} broke: {}", rank, reason));
  average_.trouble(rank);
  const bool while_asleep = slept() || (woke_ && transport_->now() - *woke_ <= patience_.silent);
  const std::lock_guard lock(mutex_);
  connected_.erase(rank);
  went_on_.erase(rank);
  if (while_asleep && !broken.left && neighbours_.contains(rank))
    went_on_.insert(rank);  // it says where it is once it is connected again
  changed_->notify_all();
}

void Exchange::lost(int rank, const std::string& reason) {
  average_.gone(rank);
  grouping_.protocol.gone(rank);
  if (peer(rank).left) return;
  log_(Level::warning,
       fmt::format("worker {} is gone ({}): going on without it, its weight stays with its neighbours", rank,
                   reason));
  const std::lock_guard lock(mutex_);
  gone_.insert(rank);
  went_on_.erase(rank);
  changed_->notify_all();
}

std::span<std::byte> Exchange::place(int from, const Frame& frame) {
  Peer& sender = peer(from);
  const SwapId id{frame.round, frame.block};
  if (frame.epoch != 0) return {};
  if (frame.type == FrameType::data) {
    if (!expects(sender, frame)) return {};
    return sender.blocks.place(id, frame, [&] { return room(frame.total); });
  }
  if (frame.type == FrameType::part || frame.type == FrameType::mean) return grouping_.place(sender, frame);
  if (frame.type == FrameType::share) {
    return place_share(sender, frame);
  }
  if (frame.type == FrameType::join) {
    if (frame.length != (peers_.size() + 7) / 8) return {};
    sender.join.resize(frame.length);
    return sender.join;
  }
  return {};
}

// A chunk of a block that may still be mixed, of the right size, and not too early.
bool Exchange::expects(const Peer& sender, const Frame& frame) const {
  if (frame.block >= blocks_.size()) return false;
  const SwapId id{frame.round, frame.block};
  if (!layout_.fits(frame, layout_.bytes(id), layout_.wire()) || !sender.edge.wants(id)) return false;
  return sender.blocks.may_take(id);
}

// What is not as it should be comes again, in chunks, and is dealt with there. That the values are finite is the sender's
// word, which it gives by sending them.
bool Exchange::received_in_place(int from, const Frame& frame, const Payload& payload) {
  Peer& sender = peer(from);
  if (frame.epoch != 0 || frame.round > horizon()) return false;
  if (frame.type == FrameType::part) return grouping_.received_in_place(sender, frame, payload);
  const SwapId id{frame.round, frame.block};
  if (frame.type != FrameType::data || !expects(sender, frame) || sender.blocks.contains(id)) return false;
  SentBlock block(payload, layout_.wire(), layout_.mask(id));
  if (!layout_.may_be_read(id, block)) return false;
  sender.heard = transport_->now();
  mark_present(sender);
  sender.blocks.put(id, std::move(block));
  sender.edge.block(id, true);
  return true;
}

void Exchange::received(int from, const Frame& frame, std::span<const std::byte> payload, bool intact) {
  Peer& sender = peer(from);
  sender.heard = transport_->now();
  if (frame.epoch != 0) return;
  switch (frame.type) {
    case FrameType::data:
      return received_data(sender, frame, payload, intact);
    case FrameType::share:
      return received_share(sender, frame, payload, intact);
    case FrameType::join:
      return received_join(sender, frame, intact);
    case FrameType::done:
      return average_.done(from, frame.round, frame.block, frame.value != 0);
    case FrameType::quit:
      sender.averaging.reset();  // its steps go on
      return average_.has_quit(from, frame.round);
    case FrameType::resume:
      is_at(from, frame.value);
      return went_on(from, false);
    case FrameType::where:
      if (sender.absent) return mark_present(sender);
      return control(from, FrameType::resume, 0, 0, 0);  // I wait for it anyway: no need to jump
    case FrameType::heartbeat:
      return control(from, FrameType::echo, 0, 0, frame.value);
    case FrameType::echo: {
      if (!neighbours_.contains(from)) return;
      // Of a peer that lies it may be anything.
      const auto now = static_cast<std::uint64_t>(transport_->now().time_since_epoch().count());
      return grouping_.turns.round_trip(from, Duration(static_cast<std::int64_t>(now - frame.value)));
    }
    case FrameType::invitation:
    case FrameType::handed:
    case FrameType::mapped:
    case FrameType::lies_at:
    case FrameType::piece:
    case FrameType::taken:
    case FrameType::ask:
    case FrameType::answer:
      return;  // from lies_at on: where the peer's transport is of another kind than mine, or its optimizer
    case FrameType::leave:
      sender.left = true;
      give_up_on(sender, 0);
      return average_.gone(from);
    case FrameType::part:
    case FrameType::mean:
    case FrameType::group_ack:
    case FrameType::group_abort:
    case FrameType::group_query:
    case FrameType::group_outcome:
    case FrameType::group_ready:
    case FrameType::group_got:
      return grouping_.received(sender, frame, payload, intact);
    case FrameType::ready:
      mark_present(sender);
      break;
    case FrameType::ack:
    case FrameType::abort:
    case FrameType::skip:
    case FrameType::query:
    case FrameType::outcome:
      break;
  }
  if (frame.block >= blocks_.size()) return;
  if (frame.type == FrameType::ack || frame.type == FrameType::abort) sender.owes_vote.reset();
  if (frame.type == FrameType::abort) is_at(from, frame.value);
  if (frame.type == FrameType::skip) {
    is_at(from, frame.round);
    grouping_.protocol.skipped(from, frame.round);
  }
  if (frame.type != FrameType::skip && frame.round > horizon()) return;
  const SwapId id{frame.round, frame.block};
  if (frame.type == FrameType::abort && frame.value != 0 && !sender.edge.past(id)) went_on(from, true);
  sender.edge.frame(frame.type, id, frame.value != 0);
  if (!sender.edge.wants(id) && frame.type == FrameType::abort) sender.blocks.drop(id);
}

void Exchange::received_data(Peer& sender, const Frame& frame, std::span<const std::byte> payload,
                             bool intact) {
  if (frame.block >= blocks_.size() || frame.round > horizon()) return;
  const SwapId id{frame.round, frame.block};
  mark_present(sender);
  if (!sender.edge.wants(id)) {
    sender.blocks.drop(id);
    if (frame.offset + frame.length == frame.total) sender.edge.block(id, false);
    return;
  }
  const Inbox::Chunk chunk = sender.blocks.received(id, frame, payload, intact && expects(sender, frame));
  if (chunk == Inbox::Chunk::partial) return;
  const bool good = chunk == Inbox::Chunk::last &&
                    layout_.may_be_read(id, sender.blocks.read(id, layout_.wire(), layout_.mask(id)));
  if (!good) {
    say_damaged(sender.rank, frame);
    sender.blocks.drop(id);
  }
  sender.edge.block(id, good);
}

Inbox::Room Exchange::room(std::size_t bytes) {
  auto buffer = pool_.take(bytes);
  const std::span<std::byte> all(*buffer);
  return {std::move(buffer), all};
}

void Exchange::say_damaged(int from, const Frame& frame) const {
  log_(Level::warning, damage(from, frame, "round"));
}

// A tick is long overdue.
bool Exchange::slept() const { return transport_->now() - ticked_ > patience_.silent / 2; }

// Heartbeats, and the search for peers that have fallen silent.
void Exchange::tick() {
  const Time now = transport_->now();
  const auto period = patience_.silent / 10;
  const bool i_slept = slept();  // then it is not the others who were silent
  if (i_slept) woke_ = now;
  const std::set<int> awaited = average_.awaited();
  ticked_ = now;
  for (const auto& each : peers_) {
    Peer& other = *each;
    if (!other.met) continue;
    say_alive(other.rank);
    if (i_slept) other.heard = now;
    if (now - other.heard <= patience_.silent) continue;
    if (!waits_for(other) && !awaited.contains(other.rank)) continue;
    const std::string why = fmt::format("silent for {:.1f} s", seconds(now - other.heard));
    mark_absent(other, why);
    average_.gone(other.rank);
    give_up_on(other, 0);
    if (waits_for(other)) transport_->reset(other.rank, why);  // I have voted: it breaks, and I am in doubt
  }
  transport_->at(now + period, [this] { tick(); });
}

}  // namespace starling
