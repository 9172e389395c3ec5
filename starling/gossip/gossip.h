// A worker's gossip: it averages with one neighbour after the other while the worker trains, and no
// worker waits for it.
//
//   training thread                       transport's thread, which is the gossip's
//   gradient(b, f)   f changes x and x~   Poisson clock -> Pairing: the neighbour to average with,
//                                         and the time when both are free
//   stepped()        a gradient was made  begin: for each block the momentum up to now, then x goes
//                                         to the neighbour
//                                         Edge: both ends commit the block's swap, or neither
//                                         committed: x and x~ take what arrived
//
// x and x~ are the gossip's (held_block.h), with a lock for each block. The training thread
// computes gradients with a copy of its own, so that neither thread ever reads what the other
// writes. The algorithm says what is sent, and what an averaging does to a block
// (pair_algorithm.h). An "averaging" here is any meeting of two workers, a push too.
//
// Time is counted in this worker's own gradients: in a running average of the time of one, in which
// the last one has weight 1/2. The momentum's constants suit the rate that was asked for. So its
// time does not run ahead of the averagings: each gives it the time that lies between two at that
// rate, of which at most kMostCredit are kept. Otherwise x and x~ would be equal before each
// averaging where the network is too slow for the rate, and x~ would overshoot further each time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "starling/core/log.h"
#include "starling/core/timeline.h"
#include "starling/core/wait.h"
#include "starling/exchange/edge.h"
#include "starling/exchange/inbox.h"
#include "starling/exchange/jump_guard.h"
#include "starling/exchange/links.h"
#include "starling/exchange/monitor.h"
#include "starling/gossip/ask_times.h"
#include "starling/gossip/held_block.h"
#include "starling/gossip/pair_algorithm.h"
#include "starling/gossip/pairing.h"
#include "starling/gossip/rates.h"
#include "starling/gossip/statistics.h"
#include "starling/kernels/wire.h"
#include "starling/transport/transport.h"

namespace starling {

struct GossipOptions {
  PairRates rates{};
  std::shared_ptr<const PairAlgorithm> algorithm = pair_averaging();
  bool poisson = true;  // ask_times.h
  Wire wire = Wire::fp32;
  std::uint64_t seed = 0;
  std::chrono::milliseconds meet{60'000};     // time for all neighbours to come at the start
  bool needs_all = true;                      // LinkOptions
  std::chrono::milliseconds patience{1'000};  // for an averaging without progress
  std::chrono::milliseconds silent{5'000};    // no byte for this long: the connection is broken
  double jump_guard = 0;                      // JumpGuard's factor; 0: off. Not for modular wires
  std::vector<UsualDistance> usual{};         // Gossip::usual() of the gossip before
  Interrupted interrupted = nobody;           // World::interrupted
};

// Blocks in the host's memory, which hold what the algorithm needs.
std::vector<std::unique_ptr<HeldBlock>> on_host(std::vector<std::vector<float>> x,
                                                const PairAlgorithm& algorithm);

class Gossip final : private TransportHandler {
 public:
  static constexpr double kMostCredit = 4;  // averagings
  static constexpr double kWatched = 100;   // gradients at least, after which the rate is looked at

  // `blocks`: they hold what the algorithm needs, and have the same sizes at all workers. The
  // graph's rank r is transport rank r.
  Gossip(std::unique_ptr<Transport> transport, GossipOptions options,
         std::vector<std::unique_ptr<HeldBlock>> blocks, Log log,
         std::shared_ptr<Timeline> timeline = nullptr);
  ~Gossip() override { transport_->stop(); }

  // Waits until all neighbours are connected. Throws Error and names the missing ones, also when
  // interrupted.
  void meet() { links_.meet(options_.meet); }

  // --- on the training thread ---
  // Calls f, which first mixes the momentum up to now, all of it. f adds the same to x and to x~.
  void gradient(int block, const std::function<void(const Held&)>& f);
  void stepped();
  // Calls f with x and x~ as they are, without the momentum since they were last touched.
  void access(int block, const std::function<void(const Held&)>& f);
  GossipClock clock() const {
    return monitor_.locked([this] { return ask_times_.position(); });
  }
  void set_clock(GossipClock clock) {
    monitor_.locked([&] { ask_times_.set(clock); });
  }
  // When pause() returns, no averaging is in flight, unless a neighbour has stopped. Then it
  // returns twice the patience after the last progress, or when it is interrupted. x and x~ have
  // the momentum up to then. No time passes for them until resume().
  void pause();
  // This worker makes no gradients until resume(): PairAlgorithm::stand_by(). Returns false if the
  // algorithm has nothing to do for that.
  bool stand_by();
  void resume();
  // Called while all stand still, before x is replaced at all workers. Exchanges in doubt, or given
  // up, no longer count when they are decided.
  void forget();

  GossipStatistics statistics() const;
  // Whether all blocks of this worker's last averaging were finite. On any thread.
  bool sent_finite() const { return finite_; }
  // See JumpGuard. On any thread.
  Standing standing() const { return guard_.standing(); }
  std::vector<UsualDistance> usual() const { return guard_.usual(); }

 private:
  struct LockedBlock {
    std::mutex mutex;  // guards the members below
    std::unique_ptr<HeldBlock> held;
    Time mixed{};   // the time up to which the momentum is mixed in
    double credit;  // gradients for which the momentum may go on before the next averaging
  };
  struct Swap {
    SentBlock mine, theirs;
    Direction direction;
    bool counts = true;  // forget() has not been called since
    bool given = false;  // what it gives is no longer mine
  };
  // Only the transport's thread touches it.
  struct Peer final : EdgeActions {
    Peer(Gossip& gossip, int rank, bool neighbour);
    void send_block(SwapId id) override;
    void cancel_block(SwapId id) override;
    void send(FrameType type, SwapId id, bool yes) override;
    void decided(SwapId id, Outcome outcome) override;
    void mended(SwapId id, bool committed) override;
    Gossip& gossip;
    const int rank;
    const bool neighbour;
    Edge edge;
    std::vector<std::uint64_t> made;  // its last news of made_
    std::optional<Time> asked;        // the time of my request that has no answer yet
    EdgeInbox inbox;
    std::map<SwapId, Swap> open, doubts;
    std::uint64_t gradients = 0;  // made before the last averaging; with the lock
    // By block. Both ends measure the same, so both ends of the edge use the same grid.
    std::vector<Grid> grids;
  };
  struct Actions final : PairingActions {
    explicit Actions(Gossip& gossip) : gossip(gossip) {}
    void ask(int peer, std::uint64_t number) override;
    void answer(int peer, std::uint64_t number, Answer answer) override;
    void begin(int peer, std::uint64_t number, bool i_asked) override;
    void refuse(int peer, std::uint64_t number) override;
    void wake(std::uint64_t alarm, Duration after) override;
    Gossip& gossip;
  };
  // The averaging in flight.
  struct Averaging {
    int peer = 0;
    std::uint64_t number = 0;
    bool receives = true;       // that is, measures the distance of both
    bool gives_all = false;     // StandBy::hands_over
    std::size_t undecided = 0;  // blocks
    std::size_t committed = 0;
    double squared_distance = 0;  // over the committed ones
    std::uint64_t sent = 0;       // by this worker, up to moved_
  };

  void connected(int peer) override;
  void disconnected(int peer, const std::string& reason) override;
  void lost(int peer, const std::string& reason) override;
  std::span<std::byte> place(int peer, const Frame& frame) override;
  void received(int peer, const Frame& frame, std::span<const std::byte> payload, bool intact) override;

  // On the transport's thread.
  bool expects(const Peer& peer, const Frame& frame) const;
  void received_data(Peer& peer, const Frame& frame, std::span<const std::byte> payload, bool intact);
  bool jumps(const Peer& peer, SwapId id, const SentBlock& theirs);
  Payload gradients_made() const;
  void learn_gradients(const Peer& peer);
  void take(Peer& peer, std::size_t block, const Swap& swap, bool late);  // the arrived data
  void give(std::size_t block, Swap& swap);
  void take_back(std::size_t block, Swap& swap);  // if it was given
  double momentum_to_now(LockedBlock& block) const;
  double most_credit() const { return kMostCredit / own_rate_; }
  void end_averaging();
  void note_progress();  // in the averaging
  void update_pairing();
  Peer& peer(int rank) { return *peers_[static_cast<std::size_t>(rank)]; }
  void clock_strikes();
  void begin_gradient();
  std::string count_gradient();  // returns watch_rate()
  std::string watch_rate();      // a warning, once, or nothing; with the monitor's lock
  void hand_over();
  void tick();
  std::size_t bytes(std::size_t block) const { return algorithm_.bytes(options_.wire, sizes_[block]); }
  GossipStatistics::Neighbour& counted(int rank);

  const GossipOptions options_;
  const PairAlgorithm& algorithm_;
  const double own_rate_;  // averagings of this worker per gradient, as asked for
  const Log log_;
  const std::shared_ptr<Timeline> timeline_;
  std::vector<std::size_t> sizes_;
  std::size_t values_ = 0;  // of all blocks
  std::vector<std::unique_ptr<LockedBlock>> blocks_;
  JumpGuard guard_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; my own is unused
  mutable Monitor monitor_;
  WorkerLinks links_;
  Actions actions_{*this};
  Pairing pairing_;
  std::optional<Averaging> averaging_;
  std::optional<Timeline::Scope> span_;  // of the averaging
  BufferPool pool_;
  std::atomic<bool> finite_ = true;  // all blocks of the last averaging were
  int struck_ = 0;                   // clock events while it was paused, in the gradient before
  bool hands_over_ = false;          // the next averaging gives all (StandBy::hands_over)
  std::vector<int> heirs_;           // then: the possible receivers; empty once one has taken it

  // On the training thread.
  std::uint64_t pauses_ = 0;  // calls of pause()

  // With the monitor's lock.
  std::vector<std::uint64_t> made_;  // gradients by rank, as far as this worker knows
  bool idle_ = true;
  std::uint64_t paused_ = 0;  // by this call of pause(); 0: not paused
  Time moved_{};              // time of the averaging's last progress
  std::optional<Time> last_gradient_;
  AskTimes ask_times_;
  GossipStatistics statistics_;
  struct Counts {
    std::uint64_t gradients = 0, averaged = 0;
  } watched_;               // up to the last look at the rate
  bool said_slow_ = false;  // that the rate is not reached

  std::atomic<double> gradient_seconds_ = 0;  // 0: not known yet

  std::unique_ptr<Transport> transport_;  // last: its thread ends before anything else goes
};

}  // namespace starling
