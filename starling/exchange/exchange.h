// The exchange of a worker with its neighbours, hidden behind its computation.
//
//   training thread                          transport's thread
//   finish(b)    waits for the votes    <--  Edge: commit or abort, per neighbour and block
//   outgoing(b)  where to write x
//   start(b)     my block is ready      -->  Edge: send, check, vote
//
//   round      rises by one with each step: its blocks are started once each, in order
//   absent     a neighbour that was late or silent, or pauses: it is not waited for until its block
//              comes, or word that it is ready
//   lost       its process is gone
//
// The protocols are Edge's, Group's and Average's. Their buffers and frames are in edge_swaps.h,
// group_swaps.h and averages.h, the connections in links.h, the count of rounds in
// current_round.h. Here these meet: the events go to them, and late neighbours are given up.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "starling/core/log.h"
#include "starling/core/timeline.h"
#include "starling/core/wait.h"
#include "starling/exchange/averages.h"
#include "starling/exchange/contents.h"
#include "starling/exchange/current_round.h"
#include "starling/exchange/edge_swaps.h"
#include "starling/exchange/group_swaps.h"
#include "starling/exchange/jump_guard.h"
#include "starling/exchange/ledger.h"
#include "starling/exchange/links.h"
#include "starling/exchange/meetings.h"
#include "starling/exchange/monitor.h"
#include "starling/exchange/sent_block.h"
#include "starling/topology/graph.h"
#include "starling/transport/transport.h"

namespace starling {

struct Patience {
  std::chrono::milliseconds meet{60'000};               // for all neighbours to come at the start
  std::chrono::milliseconds silent{5'000};              // without a byte: the peer is absent
  std::chrono::milliseconds stalled{600'000};           // alive, but its block does not come
  std::optional<std::chrono::milliseconds> max_wait{};  // instead of `stalled`, by choice
  Interrupted interrupted = nobody;                     // World::interrupted
};

struct ExchangeOptions {
  Patience patience{};
  Log log = [](Level, const std::string&) {};
  std::shared_ptr<Timeline> timeline{};
  Contents contents{};
  std::vector<UsualDistance> usual{};  // Exchange::usual() of the exchange before
  std::set<int> away{};                // ranks that are no members: the schedule gives them no neighbours
  bool needs_all = true;               // LinkOptions
  bool renewable = false;              // takes calls to renew(); else they are ignored
};

class Exchange final : private TransportHandler {
 public:
  // block_sizes: values of each vector of a block (contents.h). The schedule's rank r is transport
  // rank r. Every worker has the same sizes and contents.
  Exchange(std::unique_ptr<Transport> transport, const Schedule& schedule,
           std::vector<std::size_t> block_sizes, ExchangeOptions options);
  // Tells the others not to wait; after fails(), that an error is the reason. Takes at most a
  // second.
  ~Exchange() override;
  void fails() { fails_ = true; }

  // Waits until all neighbours of the schedule have been connected. Throws Error, naming the
  // missing, also when interrupted. Connections with the others come by and by: an average needs
  // them, and a worker that comes late to one is then known to be there. If all come to averages at
  // the same time, as with an all-reduce in each step, the first average makes them.
  void meet();

  // --- one step, on the training thread ---
  // Waits until every swap of this block is decided, as long as Patience allows. Returns what was
  // committed, by rising rank, then what was mended late; with pushes also what was given away.
  // Valid until the block's next start().
  std::span<const Arrival> finish(int block);
  // Returns where to write what the neighbours will read: nowhere, values = null, in a round in
  // which I meet nobody. Not the buffer that arrivals hold as `mine`. With modular codes the caller
  // chooses the grid, and writes the Trailer behind them (kernels/modular.h). The first block of a
  // step begins the next round, which decides the block's mask. If neighbours went on without me,
  // it first asks them which round that is, and waits for the answers as long as Patience allows.
  Outgoing outgoing(int block);
  // Instead of writing there, with Contents::may_be_empty: the wire block has no values in this
  // round.
  void leave_empty(int block);
  // The wire block is written. finite = false: the block is not sent, all neighbours go on without
  // it.
  void start(int block, bool finite);
  // Whether it had finite blocks only, in the round that has begun last.
  bool sent_finite() const {
    return monitor_.locked([this] { return not_finite_ == 0 || not_finite_ != rounds_.now(); });
  }
  // Waits as finish() does, for all blocks, and hands nothing out.
  void decide();
  // See JumpGuard. Only blocks that are decided tell.
  Standing standing() const { return guard_.standing(); }
  std::vector<UsualDistance> usual() const { return guard_.usual(); }

  // --- save and resume, on the training thread, between two steps ---
  // The schedule's place, counted from 0 within the cycle, one_in periods of it: the next
  // round, or the one that is in flight.
  std::uint64_t position(bool in_flight) const {
    return monitor_.locked([&] { return rounds_.position(in_flight); });
  }
  // The one that has begun last, from 1; 0 before the first.
  std::uint64_t round() const {
    return monitor_.locked([this] { return rounds_.now(); });
  }
  // The values of the block that this round mixes.
  Mask mask(int block) const { return layout_.mask({round(), static_cast<std::uint32_t>(block)}); }
  // Every worker calls it; the largest position of any counts. Finishes and drops what is in
  // flight; the next outgoing() begins a round of this position. Rounds themselves only ever rise.
  void restart(std::uint64_t position);

  // --- exact averages, on the training thread; every worker calls them in the same order ---
  // Returns the ranks that took part: none if the others have ended this average without this
  // worker, which then keeps its values. Waits as long as the others live; for a worker that was
  // silent since it took part in one, and may be far behind, as long as one may be silent. Throws
  // Error if another averages something else.
  std::set<int> average(std::span<float> values) { return averages_.average(values); }
  std::set<int> average_doubles(std::span<double> values) { return averages_.average_doubles(values); }
  std::set<int> maximum(std::span<std::int64_t> values) { return averages_.maximum(values); }

  // Averages between these calls are parts of one operation: who is no member of its first average
  // gets nobody from the others at once, and may leave them out.
  void begin_operation() { averages_.begin_operation(); }
  void end_operation() { averages_.end_operation(); }

  // --- a change of the membership, on the training thread (optim/membership.h) ---
  // Calls all workers to renew(). Their averages that wait for this worker throw RenewalCalled.
  void call_renewal() {
    transport_->post([this, operations = operations()] { received_renew(operations); });
  }
  // Whether this worker or another has called. On any thread.
  bool renewal_called() const { return renewal_called_; }
  // The maximum over all that come. Then this exchange makes no other average.
  std::set<int> renew(std::span<std::int64_t> values) { return averages_.renew(values); }
  // Operations that this worker has begun. The next exchange goes on from them.
  std::uint64_t operations() const { return averages_.operations(); }
  void set_operations(std::uint64_t begun) { averages_.set_operations(begun); }

  // See WorkerLinks.
  std::set<int> lost() const {
    return monitor_.locked([this] { return links_.gone(); });
  }
  std::set<int> departed() const {
    return monitor_.locked([this] { return links_.departed(); });
  }
  // It is connected, and not silent.
  bool hears(int rank) const {
    return monitor_.locked([&] { return links_.hears(rank); });
  }

  // --- a network that falls apart (World::partition) ---
  // See WorkerLinks.
  std::set<int> unseen() const {
    return monitor_.locked([this] { return links_.unseen(); });
  }
  bool sees_majority() const {
    return monitor_.locked([this] { return links_.sees_majority(); });
  }
  // It was started again, so the process that took part has ended. On any thread.
  void has_ended(int rank) {
    transport_->post([this, rank] { ended(rank); });
  }
  // Waits on the training thread until it does, for at most Patience::stalled, or until gives_up()
  // or interrupted. False: the time is over. Those that it does see go on without it meanwhile. The
  // next average then wants a majority of those of the last one.
  bool wait_for_majority(const std::function<bool()>& gives_up);
  ExchangeStatistics statistics() const;

 private:
  // TransportHandler, on the transport's thread.
  void connected(int peer) override;
  void disconnected(int peer, const std::string& reason) override;
  void lost(int peer, const std::string& reason) override;
  void ended(int peer) override;
  std::span<std::byte> place(int peer, const Frame& frame) override;
  void received(int peer, const Frame& frame, std::span<const std::byte> payload, bool intact) override;
  bool received_in_place(int peer, const Frame& frame, const Payload& payload) override;

  // On the training thread.
  void begin_round(std::unique_lock<std::mutex>& lock);
  void wait_until_decided(int block, std::unique_lock<std::mutex>& lock);

  // On the transport's thread.
  void begin_swaps(SwapId id, std::shared_ptr<const Buffer> mine, bool finite);
  void skip_to(std::uint64_t round);
  void give_up(std::uint32_t block, const std::string& why);
  void give_up_groups(std::uint32_t block, const std::string& why);
  void give_up_on(int rank, std::uint64_t from_round);
  void say_awaited(std::uint32_t block, double waited);
  bool waits_for(int rank) const;
  void pauses(int rank);
  void is_silent(int rank, const std::string& why);
  void received_renew(std::uint64_t operations);
  void received_echo(int from, const Frame& frame);
  void received_word(int from, const Frame& frame);
  void tick();

  const Patience patience_;
  const bool renewable_;
  const std::shared_ptr<Timeline> timeline_;
  const Log log_;
  const Meetings meetings_;
  const Layout layout_;
  mutable Monitor monitor_;  // its lock guards next_, and of the others what they say
  WorkerLinks links_;
  CurrentRound rounds_;
  Ledger ledger_;
  // On the transport's thread, but for averages_, which says which thread calls what.
  Holdback holdback_;
  JumpGuard guard_;
  const SwapTools tools_;
  EdgeSwaps edges_;
  GroupSwaps groups_;
  Averages averages_;

  std::uint64_t not_finite_ = 0;  // the last round with such a block; with the monitor's lock
  bool fails_ = false;            // on the training thread
  std::atomic<bool> renewal_called_ = false;
  std::vector<std::shared_ptr<Buffer>>
      next_;  // by block: what outgoing() gave out, to be written for the round that has begun

  const std::unique_ptr<Transport> transport_;  // last: its thread ends before anything else goes
};

}  // namespace starling
