#include "starling/gossip/gossip.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

namespace starling {
namespace {

constexpr std::size_t kRemembered = 2;  // averagings on an edge that its grids remember
// The transport's thread does what it is told within this time, or never.
constexpr std::chrono::milliseconds kOwnThread{60'000};

std::set<int> asked_or_asking(const PairRates& rates, int rank) {
  std::set<int> neighbours;
  for (int other = 0; other < rates.workers(); ++other) {
    if (other != rank && rates.of_pair(rank, other) > 0) neighbours.insert(other);
  }
  return neighbours;
}

}  // namespace

std::vector<std::unique_ptr<HeldBlock>> on_host(std::vector<std::vector<float>> x,
                                                const PairAlgorithm& algorithm) {
  std::vector<std::unique_ptr<HeldBlock>> blocks;
  for (std::vector<float>& values : x)
    blocks.push_back(std::make_unique<HostBlock>(std::move(values), algorithm.beside()));
  return blocks;
}

Gossip::Gossip(std::unique_ptr<Transport> transport, GossipOptions options,
               std::vector<std::unique_ptr<HeldBlock>> blocks, Log log, std::shared_ptr<Timeline> timeline)
    : options_(std::move(options)),
      algorithm_(*options_.algorithm),
      own_rate_(options_.rates.of_worker(transport->rank())),
      log_(std::move(log)),
      timeline_(std::move(timeline)),
      guard_(JumpGuard::Options{
          .factor = options_.jump_guard,
          .blocks = blocks.size(),
          .neighbours = asked_or_asking(options_.rates, transport->rank()),
          .usual = options_.usual,
          .counted = "averaging",
          .log = log_,
          .tell = [this](int rank, SwapId id, double distance,
                         bool others) { transport_->send(rank, jump_frame(id, distance, others)); }}),
      monitor_(*transport, options_.interrupted),
      links_(*transport, monitor_,
             {.neighbours = asked_or_asking(options_.rates, transport->rank()),
              .needs_all = options_.needs_all,
              .silent = options_.silent,
              .log = log_}),
      pairing_(transport->rank(), options_.seed, {}, actions_),
      ask_times_(options_.rates, transport->rank(), options_.seed, options_.poisson),
      transport_(std::move(transport)) {
  for (std::unique_ptr<HeldBlock>& held : blocks) {
    sizes_.push_back(held->now().x.size());
    values_ += sizes_.back();
    auto& block = blocks_.emplace_back(std::make_unique<LockedBlock>());
    block->held = std::move(held);
    block->mixed = transport_->now();
    block->credit = most_credit();
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

// ---------------------------------------------------------------- the training thread

void Gossip::gradient(int index, const std::function<void(const Held&)>& f) {
  LockedBlock& block = *blocks_[static_cast<std::size_t>(index)];
  const std::lock_guard lock(block.mutex);
  Held held = block.held->now();
  held.eta_tau = momentum_to_now(block);
  f(held);
}

void Gossip::access(int index, const std::function<void(const Held&)>& f) {
  LockedBlock& block = *blocks_[static_cast<std::size_t>(index)];
  const std::lock_guard lock(block.mutex);
  f(block.held->now());
}

// The momentum's constants suit the rate that was asked for. By chance, a rate below half of it is
// not seen in a run.
std::string Gossip::watch_rate() {
  const double window = std::max(kWatched, 64 / own_rate_);  // without a neighbour it has no end
  const std::uint64_t gradients = statistics_.gradients - watched_.gradients;
  if (static_cast<double>(gradients) < window) return "";
  const double got =
      static_cast<double>(statistics_.averaged - watched_.averaged) / static_cast<double>(gradients);
  watched_ = {statistics_.gradients, statistics_.averaged};
  if (algorithm_.eta() == 0 || got >= own_rate_ / 2 || std::exchange(said_slow_, true)) return "";
  return fmt::format(
      "{:.2g} averagings for each of the last {} gradients, but {:.2g} were asked for: the momentum follows. "
      "Does the network carry the rate? `starling plan` names one that it carries",
      got, gradients, own_rate_);
}

void Gossip::stepped() {
  const std::string slow = count_gradient();
  if (!slow.empty()) log_(Level::warning, slow);
  transport_->post([this] { begin_gradient(); });
}

std::string Gossip::count_gradient() {
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
  return watch_rate();
}

void Gossip::pause() {
  const std::uint64_t number = ++pauses_;
  transport_->post([this, number] {
    pairing_.pause();
    update_pairing();
    const std::lock_guard lock(monitor_.mutex);
    paused_ = number;
    monitor_.changed->notify_all();
  });
  {
    std::unique_lock lock(monitor_.mutex);
    // The transport's thread may still be about to resume, or have been stopped with the process.
    monitor_.wait(lock, kOwnThread, [&] { return paused_ == number; });
    Time looked;
    do {
      looked = moved_;
      monitor_.wait(lock, 2 * options_.patience, [&] { return idle_; });
    } while (!idle_ && looked != moved_ && !monitor_.is_interrupted(lock));
    last_gradient_.reset();  // the time until the next one is no gradient's time
  }
  for (const auto& block : blocks_) {
    const std::lock_guard lock(block->mutex);
    block->held->mix_momentum(momentum_to_now(*block));
  }
}

bool Gossip::stand_by() {
  const StandBy how = algorithm_.stand_by();
  if (how == StandBy::meets) return false;
  transport_->post([this, how] {
    pairing_.decline();
    if (how != StandBy::hands_over) return;
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
    monitor_.locked([this] { paused_ = 0; });
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
    guard_.forget_jumps();
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
      *monitor_.changed, lock, [this] { return transport_->now(); }, kOwnThread, nobody,
      [&] { return *done; });
}

GossipStatistics Gossip::statistics() const {
  const std::lock_guard lock(monitor_.mutex);
  GossipStatistics statistics = statistics_;
  statistics.jumped = guard_.refused();
  for (GossipStatistics::Neighbour& j : statistics.neighbours) {
    const std::uint64_t before = peers_[static_cast<std::size_t>(j.rank)]->gradients;
    j.gap = static_cast<double>(before) / static_cast<double>(std::max<std::uint64_t>(j.averaged, 1));
    j.longest_gap = std::max(j.longest_gap, statistics.gradients - before);
  }
  statistics.gradients_of_all = std::accumulate(made_.begin(), made_.end(), std::uint64_t{0});
  statistics.gradient_seconds = gradient_seconds_;
  statistics.bytes_sent = transport_->bytes_sent();
  statistics.payload_sent = transport_->payload_sent();
  return statistics;
}

// ---------------------------------------------------------------- the clock

void Gossip::begin_gradient() {
  // In gradients from now.
  const std::vector<double> due = monitor_.locked([this] { return ask_times_.next_gradient(); });
  for (const double gradients : due) {
    const std::chrono::duration<double> after(gradients * gradient_seconds_);
    transport_->at(transport_->now() + std::chrono::duration_cast<Duration>(after),
                   [this] { clock_strikes(); });
  }
}

void Gossip::clock_strikes() {
  int neighbour = 0;
  {
    const std::lock_guard lock(monitor_.mutex);
    if (paused_ != 0) return void(++struck_);  // and nothing is drawn: the clock stands still
    neighbour = ask_times_.whom();
  }
  pairing_.want(neighbour);
}

}  // namespace starling
