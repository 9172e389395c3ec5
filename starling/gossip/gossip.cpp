#include "starling/gossip/gossip.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "starling/core/random.h"
#include "starling/kernels/update.h"

namespace starling {
namespace {

// A peer's averaging number that is further ahead of mine than this is not believed.
constexpr std::uint64_t kHorizon = std::uint64_t{1} << 32;
constexpr std::size_t kEarly = 2;       // averagings whose blocks are kept before I have begun them
constexpr std::size_t kRemembered = 2;  // averagings on an edge that its grids remember
constexpr float kPushed = 0.5;          // share of a worker's mass
// Bytes sent between two ticks that are more than heartbeats.
constexpr std::uint64_t kMoves = 1 << 16;

std::set<int> asked_or_asking(const PairRates& rates, int rank) {
  std::set<int> neighbours;
  for (int other = 0; other < rates.workers(); ++other) {
    if (other != rank && rates.of_pair(rank, other) > 0) neighbours.insert(other);
  }
  return neighbours;
}

}  // namespace

std::vector<std::unique_ptr<HeldBlock>> on_host(std::vector<std::vector<float>> x,
                                                const GossipOptions& options) {
  std::vector<std::unique_ptr<HeldBlock>> blocks;
  for (std::vector<float>& values : x) {
    blocks.push_back(
        std::make_unique<HostBlock>(std::move(values), options.momentum.eta != 0, options.tracks));
  }
  return blocks;
}

Gossip::Gossip(std::unique_ptr<Transport> transport, GossipOptions options,
               std::vector<std::unique_ptr<HeldBlock>> blocks, Log log, std::shared_ptr<Timeline> timeline)
    : options_(std::move(options)),
      log_(std::move(log)),
      timeline_(std::move(timeline)),
      monitor_(*transport, options_.interrupted),
      links_(*transport, monitor_,
             {.neighbours = asked_or_asking(options_.rates, transport->rank()),
              .silent = options_.silent,
              .log = log_}),
      pairing_(transport->rank(), options_.seed, {}, actions_),
      transport_(std::move(transport)) {
  for (std::unique_ptr<HeldBlock>& held : blocks) {
    sizes_.push_back(held->now().x.size());
    values_ += sizes_.back();
    auto& block = blocks_.emplace_back(std::make_unique<Block>());
    block->held = std::move(held);
    block->mixed = transport_->now();
  }
  made_.resize(static_cast<std::size_t>(options_.rates.workers()));
  for (int other = 0; other < options_.rates.workers(); ++other) {
    const bool neighbour = links_.is_neighbour(other);
    peers_.push_back(std::make_unique<Peer>(*this, other, neighbour));
    if (!neighbour) continue;
    statistics_.neighbours.push_back({.rank = other});
    peers_.back()->grids.assign(sizes_.size(), Grid(options_.wire, kRemembered));
  }
  transport_->start(*this);
  transport_->post([this] {
    links_.start();
    tick();
  });
}

Gossip::~Gossip() { transport_->stop(); }

// ---------------------------------------------------------------- the training thread

void Gossip::meet() { links_.meet(options_.meet); }

void Gossip::gradient(int index, const std::function<void(const Held&)>& f) {
  Block& block = *blocks_[static_cast<std::size_t>(index)];
  const std::lock_guard lock(block.mutex);
  Held held = block.held->now();
  held.eta_tau = momentum_to_now(block);
  f(held);
}

void Gossip::look(int index, const std::function<void(const Held&)>& f) {
  Block& block = *blocks_[static_cast<std::size_t>(index)];
  const std::lock_guard lock(block.mutex);
  f(block.held->now());
}

GossipClock Gossip::clock() const {
  const std::lock_guard lock(monitor_.mutex);
  return clock_;
}

void Gossip::set_clock(GossipClock clock) {
  const std::lock_guard lock(monitor_.mutex);
  clock_ = clock;
}

void Gossip::stepped() {
  const Time now = transport_->now();
  const std::lock_guard lock(monitor_.mutex);
  ++statistics_.gradients;
  ++made_[static_cast<std::size_t>(transport_->rank())];
  if (last_gradient_) {
    const double took = seconds(now - *last_gradient_), before = gradient_seconds_;
    gradient_seconds_ = before == 0 ? took : (before + took) / 2;
  }
  last_gradient_ = now;
  if (timeline_)
    timeline_->add(
        {.name = "rate",
         .value = static_cast<double>(statistics_.averaged) / static_cast<double>(statistics_.gradients)});
  transport_->post([this] { begin_gradient(); });
}

void Gossip::pause() {
  transport_->post([this] {
    pairing_.pause();
    {
      const std::lock_guard lock(monitor_.mutex);
      paused_ = true;
    }
    look_at_pairing();
  });
  {
    std::unique_lock lock(monitor_.mutex);
    Time looked;
    do {
      looked = moved_;
      monitor_.wait(lock, 2 * options_.patience, [&] { return paused_ && idle_; });
    } while (!(paused_ && idle_) && looked != moved_ && !monitor_.is_interrupted(lock));
    last_gradient_.reset();  // the time until the next one is no gradient's time
  }
  for (const auto& block : blocks_) {
    const std::lock_guard lock(block->mutex);
    block->held->mix_momentum(momentum_to_now(*block));
  }
}

bool Gossip::stand_by() {
  if (!pushes()) return false;
  transport_->post([this] {
    pairing_.decline();
    if (!options_.tracks) return;
    hands_over_ = true;
    heirs_.clear();
    for (const Neighbour& out : options_.rates.asks[static_cast<std::size_t>(transport_->rank())])
      heirs_.push_back(out.rank);
    hand_over();
  });
  return true;
}

void Gossip::resume() {
  // No time has passed.
  for (const auto& block : blocks_) {
    const std::lock_guard lock(block->mutex);
    block->mixed = transport_->now();
  }
  transport_->post([this] {
    {
      const std::lock_guard lock(monitor_.mutex);
      paused_ = false;
    }
    hands_over_ = false;
    heirs_.clear();
    pairing_.resume();
    for (; struck_ > 0; --struck_) clock_strikes();
  });
}

// Asks one neighbour after the other, until one has taken it.
void Gossip::hand_over() {
  while (!heirs_.empty() && pairing_.idle() && pairing_.due() == 0) {
    const int heir = heirs_.back();
    heirs_.pop_back();
    pairing_.want(heir);
  }
}

void Gossip::forget() {
  const auto done = std::make_shared<bool>(false);
  transport_->post([this, done] {
    for (const auto& peer : peers_) {
      for (auto* const swaps : {&peer->open, &peer->doubts}) {
        for (auto& [id, swap] : *swaps) swap.counts = false;
      }
    }
    const std::lock_guard lock(monitor_.mutex);
    *done = true;
    monitor_.changed->notify_all();
  });
  std::unique_lock lock(monitor_.mutex);
  wait(
      *monitor_.changed, lock, [this] { return transport_->now(); }, std::chrono::minutes(1), nobody,
      [&] { return *done; });
}

GossipStatistics Gossip::statistics() const {
  const std::lock_guard lock(monitor_.mutex);
  GossipStatistics statistics = statistics_;
  for (GossipStatistics::Neighbour& j : statistics.neighbours) {
    const std::uint64_t before = peers_[static_cast<std::size_t>(j.rank)]->gradients;
    j.staleness = static_cast<double>(before) / static_cast<double>(std::max<std::uint64_t>(j.averaged, 1));
    j.stalest = std::max(j.stalest, statistics.gradients - before);
  }
  statistics.gradients_of_all = std::accumulate(made_.begin(), made_.end(), std::uint64_t{0});
  statistics.gradient_seconds = gradient_seconds_;
  statistics.bytes_sent = transport_->bytes_sent();
  statistics.payload_sent = transport_->payload_sent();
  return statistics;
}

// ---------------------------------------------------------------- the clock

// Uniform in (0, 1].
double Gossip::dice() {
  const auto rank = static_cast<std::uint64_t>(transport_->rank());
  return uniform_of(random_bits({options_.seed, rank, ++clock_.drawn})) + 0x1p-53;
}

double Gossip::until_next() {
  return options_.rates.until_next(transport_->rank(), options_.poisson, options_.poisson ? dice() : 1);
}

// A Poisson process whose time is counted in gradients: events of the gradient that begins now are
// spread over its expected time. The number of averagings per gradient therefore does not depend on
// the time of single gradients.
void Gossip::begin_gradient() {
  std::vector<double> due;  // in gradients from now
  {
    const std::lock_guard lock(monitor_.mutex);
    if (options_.rates.asks[static_cast<std::size_t>(transport_->rank())].empty()) return;
    double& until_next = clock_.until_next;
    if (until_next < 0) {
      until_next = this->until_next();
      // Otherwise all would ask at the same time, and none answer.
      if (!options_.poisson) until_next *= dice();
    }
    for (; until_next < 1; until_next += this->until_next()) due.push_back(until_next);
    until_next -= 1;
  }
  for (const double gradients : due) {
    const std::chrono::duration<double> after(gradients * gradient_seconds_);
    transport_->at(transport_->now() + std::chrono::duration_cast<Duration>(after),
                   [this] { clock_strikes(); });
  }
}

void Gossip::clock_strikes() {
  double drawn = 0;
  {
    const std::lock_guard lock(monitor_.mutex);
    if (paused_) return void(++struck_);  // and nothing is drawn: the clock stands still
    drawn = dice();
  }
  pairing_.want(options_.rates.whom(transport_->rank(), drawn));
}

// ---------------------------------------------------------------- actions of pairing

void Gossip::Actions::ask(int peer, std::uint64_t number) {
  gossip.peer(peer).asked = gossip.transport_->now();
  gossip.transport_->send(peer, {.type = FrameType::ask, .round = number}, gossip.told());
}

void Gossip::Actions::answer(int peer, std::uint64_t number, Answer answer) {
  gossip.transport_->send(
      peer, {.type = FrameType::answer, .round = number, .value = static_cast<std::uint8_t>(answer)},
      gossip.told());
}

Direction Gossip::direction(bool i_asked) const {
  return pushes() ? Direction{.send = i_asked, .receive = !i_asked} : Direction{};
}

void Gossip::Actions::begin(int rank, std::uint64_t number, bool i_asked) {
  const Direction direction = gossip.direction(i_asked);
  Peer& peer = gossip.peer(rank);
  {
    const std::lock_guard lock(gossip.monitor_.mutex);
    ++gossip.counted(rank).begun;
  }
  const bool gives_all = i_asked && gossip.hands_over_;  // of y, of which one share is taken
  gossip.averaging_ = Averaging{.peer = rank,
                                .number = number,
                                .receives = direction.receive,
                                .gives_all = gives_all,
                                .undecided = gossip.blocks_.size()};
  gossip.note_progress();
  gossip.span_.emplace(gossip.timeline_.get(),
                       Timeline::Span{.name = "averaging", .peer = rank, .round = number});
  for (std::uint32_t b = 0; b < gossip.blocks_.size(); ++b) {
    const SwapId id{number, b};
    Block& block = *gossip.blocks_[b];
    auto mine = gossip.transport_->buffer(gossip.bytes(b));
    Trailer trailer{.exponent = peer.grids[b].next()};
    kernels::WireBlock sent{mine->data(), gossip.options_.wire};
    sent.exponent = trailer.exponent;
    sent.sum = &trailer.sum;
    bool finite = true;
    {
      const std::lock_guard lock(block.mutex);
      finite = block.held->send(gossip.momentum_to_now(block), sent, gives_all ? 1 / kPushed : 1);
      if (gossip.weighs()) {
        std::byte* const behind = mine->data() + bytes_of(sent.wire, gossip.sizes_[b]);
        write_weight(block.held->now().weight, sent.wire, behind);
      }
    }
    set_trailer(std::span(*mine).first(gossip.bytes(b)), gossip.options_.wire, trailer);
    peer.open[id] = {.mine = SentBlock(payload_of(std::move(mine)), gossip.options_.wire),
                     .theirs = {},
                     .direction = direction};
    peer.edge.start(id, direction, finite);
  }
}

void Gossip::Actions::refuse(int rank, std::uint64_t number) {
  for (std::uint32_t b = 0; b < gossip.blocks_.size(); ++b)
    gossip.peer(rank).edge.pass({number, b}, gossip.direction(true));
}

void Gossip::Actions::wake(std::uint64_t alarm, Duration after) {
  gossip.transport_->at(gossip.transport_->now() + after, [this, alarm] {
    gossip.pairing_.alarm(alarm);
    gossip.look_at_pairing();
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
    with.stalest = std::max(with.stalest, statistics_.gradients - before);
    const auto staleness = static_cast<double>(statistics_.gradients - before);
    before = statistics_.gradients;
    if (timeline_) timeline_->add({.name = "staleness", .peer = ended.peer, .value = staleness});
    if (ended.receives) {
      ++with.received;
      with.distance = std::sqrt(ended.squared_distance / static_cast<double>(values_));
      if (timeline_) timeline_->add({.name = "distance", .peer = ended.peer, .value = with.distance});
    }
  }
  pairing_.ended();
  look_at_pairing();
}

void Gossip::note_progress() {
  averaging_->sent = transport_->bytes_sent();
  const std::lock_guard lock(monitor_.mutex);
  moved_ = transport_->now();
}

void Gossip::look_at_pairing() {
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
      inbox(kEarly * gossip.blocks_.size(), gossip.options_.wire) {}

void Gossip::Peer::send_block(SwapId id) {
  gossip.transport_->send(rank,
                          {.type = FrameType::data,
                           .dtype = static_cast<std::uint8_t>(gossip.options_.wire),
                           .round = id.round,
                           .block = id.block},
                          open.at(id).mine.block);
}

void Gossip::Peer::cancel_block(SwapId id) {
  gossip.transport_->cancel(rank, FrameType::data, id.round, id.block);
}

void Gossip::Peer::send(FrameType type, SwapId id, bool yes) {
  gossip.transport_->send(rank, {.type = type, .round = id.round, .block = id.block, .value = yes});
}

void Gossip::Peer::decided(SwapId id, Outcome outcome) {
  auto node = open.extract(id);
  SentBlock theirs = inbox.take(id).block;
  if (node.empty()) return;  // for an averaging that I have refused
  Swap swap = std::move(node.mapped());
  double distance = 0;
  swap.theirs = std::move(theirs);
  outcome == Outcome::aborted ? gossip.take_back(id.block, swap) : gossip.give(id.block, swap);
  if (outcome == Outcome::committed) {
    if (swap.direction.receive) {
      gossip.take(*this, id.block, swap, false);
      distance = kernels::best_kernels().squared_distance(swap.theirs.values(), swap.mine.values(),
                                                          gossip.sizes_[id.block]);
    }
  } else {
    const std::lock_guard lock(gossip.monitor_.mutex);
    ++gossip.counted(rank).aborted;
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
  const std::lock_guard lock(gossip.monitor_.mutex);
  ++gossip.counted(rank).late;
}

// ---------------------------------------------------------------- x and x~

void Gossip::take(Peer& peer, std::size_t block, const Swap& swap, bool late) {
  if (!swap.counts) return;
  if (!pushes()) return average(peer, block, swap);
  if (options_.tracks && !late) {  // there is no sum that an old x would restore
    const std::lock_guard lock(blocks_[block]->mutex);
    blocks_[block]->held->move_towards(swap.theirs, A2cid2::alpha);
  }
  move(block, kPushed, swap.theirs);
}

void Gossip::give(std::size_t block, Swap& swap) {
  if (!pushes() || !swap.direction.send || std::exchange(swap.given, true)) return;
  if (swap.counts) move(block, -kPushed, swap.mine);
}

void Gossip::take_back(std::size_t block, Swap& swap) {
  if (std::exchange(swap.given, false) && swap.counts) move(block, kPushed, swap.mine);
}

// Moves this share of the sent values to this block.
void Gossip::move(std::size_t index, double share, const SentBlock& q) {
  Block& block = *blocks_[index];
  const double mass = options_.tracks ? 0 : share * weight_of(q, sizes_[index]);
  const std::lock_guard lock(block.mutex);
  if (options_.tracks) return block.held->add_tracked(q, static_cast<float>(share));
  if (mass == 0) return;
  double& weight = block.held->now().weight;
  weight += mass;
  block.held->move_towards(q, static_cast<float>(mass / weight));
}

void Gossip::average(Peer& peer, std::size_t index, const Swap& swap) {
  Block& block = *blocks_[index];
  kernels::Measured measured;
  {
    const std::lock_guard lock(block.mutex);
    measured = block.held->average(momentum_to_now(block), A2cid2::alpha,
                                   static_cast<float>(options_.momentum.alpha_tilde), swap.theirs, swap.mine);
  }
  Grid::Wanted wanted;
  wanted.add(options_.wire, swap.theirs.trailer, swap.mine.trailer, measured);
  peer.grids[index].follow(wanted);
}

double Gossip::momentum_to_now(Block& block) const {
  const Time now = transport_->now();
  const double tau = gradient_seconds_ == 0 ? 0 : seconds(now - block.mixed) / gradient_seconds_;
  block.mixed = now;
  return options_.momentum.eta * tau;
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
  look_at_pairing();
}

// The optimizer's exchange, which is connected with all workers, reports the loss.
void Gossip::lost(int rank, const std::string& reason) {
  log_(Level::info, fmt::format("worker {} is gone ({}): gossip goes on without it", rank, reason));
}

bool Gossip::expects(const Peer& peer, const Frame& frame) const {
  if (!peer.neighbour || frame.block >= blocks_.size() || frame.total != bytes(frame.block) ||
      frame.dtype != static_cast<std::uint8_t>(options_.wire))
    return false;
  const SwapId id{frame.round, frame.block};
  return peer.edge.wants(id) && peer.inbox.may_take(id);
}

std::span<std::byte> Gossip::place(int from, const Frame& frame) {
  Peer& sender = peer(from);
  if (frame.type == FrameType::ask || frame.type == FrameType::answer) {
    sender.told.assign(made_.size(), 0);
    const auto room = std::as_writable_bytes(std::span(sender.told));
    return sender.neighbour && frame.offset == 0 && frame.length == room.size() ? room
                                                                                : std::span<std::byte>();
  }
  if (frame.epoch != 0 || frame.type != FrameType::data || !expects(sender, frame)) return {};
  return sender.inbox.place({frame.round, frame.block}, frame, [&]() -> Inbox::Room {
    auto buffer = pool_.take(frame.total);
    return {buffer, *buffer};
  });
}

void Gossip::received(int from, const Frame& frame, std::span<const std::byte> payload, bool intact) {
  Peer& sender = peer(from);
  links_.heard(from);
  if (frame.epoch != 0 || frame.round > kHorizon || !sender.neighbour) return;
  if (averaging_ && averaging_->peer == from && averaging_->number == frame.round) note_progress();
  switch (frame.type) {
    case FrameType::ask:
      if (intact) hear(sender);
      pairing_.asked(from, frame.round);
      return look_at_pairing();
    case FrameType::answer:
      if (intact) hear(sender);
      if (sender.asked) pairing_.answer_took(from, transport_->now() - *std::exchange(sender.asked, {}));
      if (frame.value <= static_cast<std::uint8_t>(Answer::no))
        pairing_.answered(from, frame.round, static_cast<Answer>(frame.value));
      return look_at_pairing();
    case FrameType::data:
      return received_data(sender, frame, payload, intact);
    case FrameType::ack:
    case FrameType::abort:
    case FrameType::skip:
    case FrameType::query:
    case FrameType::outcome:
      if (frame.block < blocks_.size())
        sender.edge.frame(frame.type, {frame.round, frame.block}, frame.value != 0);
      return;
    default:
      return;  // heartbeats, and frames of an exchange
  }
}

// The payload of each request and answer.
Payload Gossip::told() const {
  const std::lock_guard lock(monitor_.mutex);
  const auto made = std::make_shared<const std::vector<std::uint64_t>>(made_);
  return {made, std::as_bytes(std::span(*made))};
}

void Gossip::hear(const Peer& peer) {
  if (std::ranges::any_of(peer.told, [](std::uint64_t made) { return made > kHorizon; })) return;
  const std::lock_guard lock(monitor_.mutex);
  for (std::size_t rank = 0; rank < peer.told.size(); ++rank) {
    if (static_cast<int>(rank) != transport_->rank()) made_[rank] = std::max(made_[rank], peer.told[rank]);
  }
}

void Gossip::received_data(Peer& peer, const Frame& frame, std::span<const std::byte> payload, bool intact) {
  if (frame.block >= blocks_.size()) return;
  const SwapId id{frame.round, frame.block};
  if (!peer.edge.wants(id)) {
    peer.inbox.drop(id);
    if (frame.offset + frame.length == frame.total) peer.edge.block(id, false);
    return;
  }
  const Inbox::Chunk chunk = peer.inbox.received(id, frame, payload, intact && expects(peer, frame));
  if (chunk == Inbox::Chunk::partial) return;
  if (chunk == Inbox::Chunk::damaged) {
    log_(Level::warning, damage(peer.rank, frame, "averaging"));
    return peer.edge.block(id, false);
  }
  const SentBlock& sent = peer.inbox.read(id, options_.wire);
  const bool readable = sent.may_be_read() && (!weighs() || weight_of(sent, sizes_[frame.block]) >= 0);
  if (!readable) {
    log_(Level::warning,
         fmt::format("worker {} sent block {} in averaging {} {}: not mixed", peer.rank, frame.block,
                     frame.round, weighs() ? "with a weight below 0" : "on a grid out of range"));
    peer.inbox.drop(id);
  }
  peer.edge.block(id, readable);
}

// Sends heartbeats, and ends averagings that take too long.
void Gossip::tick() {
  const Time now = transport_->now();
  links_.tick([this](int rank, const std::string& why) {
    // Once I have voted, only the peer decides, or a connection that breaks.
    if (!peer(rank).edge.open().empty()) transport_->reset(rank, why);
  });
  if (averaging_ && transport_->bytes_sent() > averaging_->sent + kMoves) note_progress();
  const Duration still = [&] {
    const std::lock_guard lock(monitor_.mutex);
    return now - moved_;
  }();
  if (averaging_ && still > options_.patience) {
    Peer& late = peer(averaging_->peer);
    const std::uint64_t number = averaging_->number;
    log_(Level::info, fmt::format("averaging {} with worker {} is given up: nothing has moved for {:.1f} s",
                                  number, late.rank, seconds(still)));
    for (const SwapId id : late.edge.open()) {
      if (id.round == number) late.edge.give_up(id);
    }
    // Swaps that I have voted for are decided later, and the next averaging does not wait for them.
    // Their pushed mass is no longer mine.
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
