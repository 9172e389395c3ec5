#include "starling/exchange/exchange.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/failpoint.h"

namespace starling {
namespace {

// While it lives, the others do not wait for me. On the training thread.
class Pause {
 public:
  Pause(Transport& transport, WorkerLinks& links) : transport_(transport), links_(links) { say(true); }
  ~Pause() { say(false); }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;

 private:
  void say(bool pauses) {
    transport_.post([&links = links_, pauses] { links.pause(pauses); });
  }
  Transport& transport_;
  WorkerLinks& links_;
};

}  // namespace

// ---------------------------------------------------------------- the training thread

Exchange::Exchange(std::unique_ptr<Transport> transport, const Schedule& schedule,
                   std::vector<std::size_t> block_sizes, ExchangeOptions options)
    : patience_(options.patience),
      renewable_(options.renewable),
      timeline_(options.timeline),
      log_(options.log),
      meetings_(schedule, transport->rank(), options.contents.has_mean()),
      layout_(options.contents, std::move(block_sizes), meetings_.period()),
      monitor_(*transport, patience_.interrupted),
      links_(*transport, monitor_,
             {.neighbours = meetings_.neighbours(),
              .away = std::move(options.away),
              .needs_all = options.needs_all,
              .silent = patience_.silent,
              .log = options.log,
              .greet = [this](int rank) { links_.control(rank, FrameType::resume, rounds_.next()); }}),
      rounds_(meetings_, layout_, monitor_),
      ledger_(layout_.blocks(), monitor_),
      guard_(JumpGuard::Options{
          .factor = options.contents.jump_guard,
          .blocks = layout_.blocks(),
          .neighbours = meetings_.neighbours(),
          .usual = std::move(options.usual),
          .log = options.log,
          .tell = [this](int rank, SwapId id, double distance,
                         bool others) { transport_->send(rank, jump_frame(id, distance, others)); }}),
      tools_{*transport, meetings_, layout_, links_,      rounds_,
             ledger_,    holdback_, guard_,  options.log, timeline_},
      edges_(tools_, options.contents.exchanged == Exchanged::pushes),
      groups_(tools_, edges_),
      averages_(*transport, monitor_, links_, rounds_,
                {.silent = patience_.silent,
                 .stalled = patience_.stalled,
                 .log = options.log,
                 .timeline = timeline_,
                 .stands_still = [this](int rank, std::uint64_t from) { give_up_on(rank, from); }}),
      next_(layout_.blocks()),
      transport_(std::move(transport)) {
  holdback_.watch(edges_, groups_);
  transport_->start(*this);
  transport_->post([this] {
    links_.start();
    tick();
  });
}

Exchange::~Exchange() {
  transport_->post([this, fails = fails_] { links_.leave(fails); });
  transport_->stop();
}

void Exchange::meet() {
  links_.open_all();
  links_.meet(patience_.meet);
}

std::span<const Arrival> Exchange::finish(int index) {
  failpoint("exchange");
  const Timeline::Scope span(timeline_.get(), {.name = "wait", .block = index});
  std::unique_lock lock(monitor_.mutex);
  wait_until_decided(index, lock);
  return ledger_.finish(index);
}

void Exchange::decide() {
  const Timeline::Scope span(timeline_.get(), {.name = "wait"});
  std::unique_lock lock(monitor_.mutex);
  for (std::size_t b = 0; b < layout_.blocks(); ++b) wait_until_decided(static_cast<int>(b), lock);
}

void Exchange::wait_until_decided(int index, std::unique_lock<std::mutex>& lock) {
  const Time begin = transport_->now();
  const auto decided = [&] { return ledger_.decided(index); };
  if (!decided() && !links_.absent_ranks().empty()) {
    transport_->post([this, index] { give_up(static_cast<std::uint32_t>(index), {}); });
  }
  const auto most = patience_.max_wait.value_or(patience_.stalled);
  auto patience = std::min(most, patience_.silent);
  while (!monitor_.wait(lock, patience, decided)) {
    const auto waited = std::chrono::ceil<std::chrono::milliseconds>(transport_->now() - begin);
    const bool enough = waited >= most || monitor_.is_interrupted(lock);
    // The swaps that I voted for must still be waited for: their vote comes, or their connection
    // breaks.
    transport_->post([this, block = static_cast<std::uint32_t>(index), enough, waited = seconds(waited)] {
      enough ? give_up(block, fmt::format("no block after {:.1f} s", waited)) : say_awaited(block, waited);
    });
    patience = enough ? patience_.max_wait.value_or(patience_.silent) : most - waited;
  }
  ledger_.counts().seconds_waiting += seconds(transport_->now() - begin);
}

Outgoing Exchange::outgoing(int index) {
  std::unique_lock lock(monitor_.mutex);
  if (rounds_.complete()) begin_round(lock);
  const SwapId id{rounds_.now(), static_cast<std::uint32_t>(index)};
  if (meetings_.at(id.round).swaps() == 0) return {{nullptr, layout_.wire()}, layout_.mask(id)};
  lock.unlock();
  auto buffer = transport_->buffer(layout_.bytes(id));
  lock.lock();
  std::shared_ptr<Buffer>& next = next_[id.block];
  next = std::move(buffer);
  return {{next->data(), layout_.wire()}, layout_.mask(id)};
}

void Exchange::leave_empty(int index) {
  const std::lock_guard lock(monitor_.mutex);
  std::shared_ptr<Buffer>& next = next_[static_cast<std::size_t>(index)];
  if (next) next = std::make_shared<Buffer>(std::size_t{0});
}

void Exchange::begin_round(std::unique_lock<std::mutex>& lock) {
  ExchangeStatistics& counts = ledger_.counts();
  if (rounds_.left_behind()) {
    const Time begin = transport_->now();
    rounds_.catch_up(lock, patience_.max_wait.value_or(patience_.silent), *transport_, links_);
    counts.seconds_waiting += seconds(transport_->now() - begin);
  }
  counts.skipped_rounds += rounds_.begin();
  ++counts.rounds;
}

void Exchange::start(int index, bool finite) {
  std::unique_lock lock(monitor_.mutex);
  const SwapId id{rounds_.now(), static_cast<std::uint32_t>(index)};
  const bool is_news = !finite && (not_finite_ == 0 || id.round > not_finite_ + 1);
  if (!finite) not_finite_ = id.round;
  const int swaps = meetings_.at(id.round).swaps();
  auto mine = std::exchange(next_[id.block], nullptr);
  ledger_.begin(index, swaps);
  const bool jumped = rounds_.start_block();
  if (swaps > 0) {  // else nobody needs to know
    transport_->post([this, id, mine = std::move(mine), finite] { begin_swaps(id, mine, finite); });
  }
  if (jumped) transport_->post([this, round = id.round] { skip_to(round); });
  lock.unlock();  // a log may ask for counts
  if (is_news)
    log_(Level::warning, fmt::format("this worker's block {} is not finite in round {}: its neighbours go on "
                                     "without it until it is",
                                     index, id.round));
}

void Exchange::restart(std::uint64_t position) {
  for (std::size_t b = 0; b < layout_.blocks(); ++b) finish(static_cast<int>(b));
  transport_->post([this] {
    edges_.forget_doubts();
    groups_.forget_doubts();
  });
  // All have finished what was in flight once this returns, and agree on the farthest.
  std::int64_t farthest[] = {static_cast<std::int64_t>(round()), static_cast<std::int64_t>(position)};
  maximum(farthest);
  transport_->post([this] { guard_.forget_jumps(); });
  if (!rounds_.possible(static_cast<std::uint64_t>(farthest[0])))
    throw Error(fmt::format("a worker claims round {}, which no worker can have reached", farthest[0]));
  const std::lock_guard lock(monitor_.mutex);
  ledger_.forget();
  rounds_.restart(static_cast<std::uint64_t>(farthest[0]), static_cast<std::uint64_t>(farthest[1]));
}

bool Exchange::wait_for_majority(const std::function<bool()>& gives_up) {
  constexpr std::chrono::milliseconds kLook{100};
  const auto sees = [this] { return links_.sees_majority(); };
  transport_->post([this] { averages_.i_have_paused(); });
  const Pause pause(*transport_, links_);
  const Time begin = transport_->now();
  std::unique_lock lock(monitor_.mutex);
  bool is_late = false;
  while (!is_late && !monitor_.wait(lock, kLook, sees)) {
    if (monitor_.is_interrupted(lock) || ask(gives_up, lock)) break;
    is_late = transport_->now() - begin >= patience_.stalled;
  }
  ledger_.counts().seconds_waiting += seconds(transport_->now() - begin);
  return !is_late;
}

ExchangeStatistics Exchange::statistics() const {
  const std::lock_guard lock(monitor_.mutex);
  ExchangeStatistics statistics = ledger_.counts();
  statistics.jumped = guard_.refused();
  statistics.bytes_sent = transport_->bytes_sent();
  statistics.bytes_in_place = transport_->bytes_in_place();
  statistics.payload_sent = transport_->payload_sent();
  statistics.lost = links_.gone();
  return statistics;
}

// ---------------------------------------------------------------- the transport's thread: swaps

void Exchange::begin_swaps(SwapId id, std::shared_ptr<const Buffer> mine, bool finite) {
  edges_.begin_spans(id);
  if (meetings_.at(id.round).in_group()) {
    groups_.begin(id, std::move(mine), finite);
  } else {
    edges_.begin(id, mine, finite);
  }
}

void Exchange::skip_to(std::uint64_t round) {
  edges_.skip_to(round);
  groups_.skip_to(round);
}

// Gives up those that still owe me this block: all, or (without a reason) the absent ones only.
void Exchange::give_up(std::uint32_t block, const std::string& why) {
  for (int rank = 0; rank < transport_->size(); ++rank) {
    if (why.empty() && !links_.absent(rank)) continue;
    Edge& late = edges_.edge(rank);
    for (const SwapId id : late.open()) {
      if (id.block != block) continue;
      if (late.give_up(id)) {
        links_.mark_absent(rank, why);
      } else {
        links_.wait_for_vote(rank);
      }
    }
  }
  give_up_groups(block, why);  // after the edges: it goes on over them
}

void Exchange::give_up_groups(std::uint32_t block, const std::string& why) {
  Group& groups = groups_.protocol();
  for (const SwapId id : groups.open()) {
    if (id.block != block) continue;
    const std::set<int> late = groups.not_started(id);
    if (why.empty() && std::ranges::none_of(late, [&](int rank) { return links_.absent(rank); })) continue;
    for (const int rank : late) {
      if (!why.empty()) links_.mark_absent(rank, why);
    }
    const std::set<int> owing = groups.not_voted(id);
    if (groups.give_up(id)) continue;
    for (const int rank : owing) links_.wait_for_vote(rank);
  }
}

// Gives up what it can of this worker's swaps from this round on.
void Exchange::give_up_on(int rank, std::uint64_t from_round) {
  Edge& edge = edges_.edge(rank);
  for (const SwapId id : edge.open()) {
    if (id.round >= from_round) edge.give_up(id);
  }
  Group& groups = groups_.protocol();
  for (const SwapId id : groups.open()) {
    if (id.round >= from_round && groups.waits_for(id, rank)) groups.give_up(id);
  }
}

void Exchange::say_awaited(std::uint32_t block, double waited) {
  std::set<int> awaited;
  std::uint64_t round = 0;
  for (int rank = 0; rank < transport_->size(); ++rank) {
    for (const SwapId id : edges_.edge(rank).open()) {
      if (id.block == block) awaited.insert(rank), round = id.round;
    }
  }
  const Group& groups = groups_.protocol();
  for (const SwapId id : groups.open()) {
    if (id.block != block) continue;
    std::set<int> late = groups.not_started(id);
    if (late.empty()) late = groups.not_voted(id);
    awaited.merge(late);
    round = id.round;
  }
  if (awaited.empty()) return;
  log_(Level::warning,
       fmt::format("round {} has waited {:.1f} s for {}", round, waited, name_of_workers(awaited)));
}

bool Exchange::waits_for(int rank) const {
  const Group& groups = groups_.protocol();
  return !edges_.edge(rank).open().empty() ||
         std::ranges::any_of(groups.open(), [&](SwapId id) { return groups.waits_for(id, rank); });
}

}  // namespace starling
