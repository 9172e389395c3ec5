// A worker's gossip: it averages with one neighbour after the other while the worker trains, and no
// worker waits for it.
//
//   training thread                       transport's thread, which is the gossip's
//   gradient(b, f)   f changes x and x~   Poisson clock -> Pairing: the neighbour to average with,
//                                         and the time when both are free
//   stepped()        a gradient was made  begin: for each block the momentum up to now, then x goes
//                                         to the neighbour
//                                         Edge: both ends commit the block's swap, or neither
//                                         committed: x += alpha (x_j - x_i),
//                                                    x~ += alpha~ (x_j - x_i)
//
// x and x~ are the gossip's (held_block.h), with a lock for each block. The training thread
// computes gradients with a copy of its own, so that neither thread ever reads what the other
// writes. The formulas are A2cid2's (a2cid2.h). The momentum is mixed in before a block is sent.
// The difference of the two sent blocks is added, which is the same at both ends, whatever their
// gradients did to x in the meantime. So the sum of all x + x~ is kept (without momentum that of
// all x).
//
// Exchanged::pushes: asynchronous gradient push (Assran & Rabbat 2021, arXiv 1803.08950), on
// directed graphs. The asker pushes half of its mass w to the worker that it asks; nothing goes the
// other way. x is then z, and mass moves as in schemes/push_sum.h, with m = w_j / 2 and q = x_j as
// they were sent:
//
//   committed: w_i += m,  x_i += m / w_i (q - x_i)   at the worker that was asked
//              w_j -= m,  x_j -= m / w_j (q - x_j)   at the asker, also while in doubt or given up:
//                                                    it comes back if it was not taken
//
// So the sums of all w and of all w x are kept.
//
// With tracking: asynchronous push-pull (optim/schemes/push_pull.h). A push carries x and the
// tracked gradient y, with q_x = x_j and q_y = y_j as they were sent:
//
//   committed: x_i += 1/2 (q_x - x_i),  y_i += 1/2 q_y  at the worker that was asked, which pulls x
//              y_j -= 1/2 q_y                           at the asker, like a push-sum's mass
//
// So the sum of all y is kept, and there is no w.
//
// Time is counted in this worker's own gradients: in a running average of the time of one, in which
// the last one has weight 1/2.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
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
#include "starling/exchange/contents.h"
#include "starling/exchange/edge.h"
#include "starling/exchange/inbox.h"
#include "starling/exchange/links.h"
#include "starling/exchange/monitor.h"
#include "starling/exchange/weight.h"
#include "starling/gossip/a2cid2.h"
#include "starling/gossip/held_block.h"
#include "starling/gossip/pairing.h"
#include "starling/gossip/rates.h"
#include "starling/kernels/wire.h"
#include "starling/transport/transport.h"

namespace starling {

struct GossipOptions {
  PairRates rates{};
  A2cid2 momentum{};    // eta = 0: no momentum, and there is no x~
  bool poisson = true;  // otherwise a worker asks at even times, the first time being random
  Wire wire = Wire::fp32;
  Exchanged exchanged = Exchanged::averages;  // pushes: no momentum, and a wire that is not modular
  bool tracks = false;                        // pushes are those of push-pull
  std::uint64_t seed = 0;
  std::chrono::milliseconds meet{60'000};     // time for all neighbours to come at the start
  std::chrono::milliseconds patience{1'000};  // for an averaging without progress
  std::chrono::milliseconds silent{5'000};    // no byte for this long: the connection is broken
  Interrupted interrupted = nobody;           // World::interrupted
};

struct GossipStatistics {
  struct Neighbour {
    int rank = 0;
    std::uint64_t begun = 0;     // averagings
    std::uint64_t averaged = 0;  // averagings with all blocks
    std::uint64_t received = 0;  // averagings that received data: all, except for pushes
    std::uint64_t aborted = 0;   // blocks
    std::uint64_t late = 0;      // blocks averaged late, after a broken connection was restored
    // Staleness: gradients of this worker between two averagings on this edge, including those
    // before the first and since the last one. Its mean, and its maximum so far.
    double staleness = 0;
    std::uint64_t stalest = 0;
    // RMS of x_j - x_i at the begin of the last averaging; for pushes, of the last one from j.
    double distance = 0;
  };
  std::vector<Neighbour> neighbours;  // by rising rank
  PairingStatistics pairing;
  std::uint64_t gradients = 0;
  // The known number of all workers' gradients: requests and answers carry it.
  std::uint64_t gradients_of_all = 0;
  // Averagings with all blocks; per gradient that is the effective rate.
  std::uint64_t averaged = 0;
  double gradient_seconds = 0;  // current time of a gradient
  std::uint64_t bytes_sent = 0, payload_sent = 0;
};

// The position of a worker's own clock, to resume from.
struct GossipClock {
  std::uint64_t drawn = 0;  // random numbers
  double until_next = -1;   // gradients until an averaging is due; below 0: not drawn yet
};

// Blocks in the host's memory, with the contents that these options need.
std::vector<std::unique_ptr<HeldBlock>> on_host(std::vector<std::vector<float>> x,
                                                const GossipOptions& options);

class Gossip final : private TransportHandler {
 public:
  // `blocks`: with the contents that the options need, of the same sizes at all workers. The
  // graph's rank r is transport rank r.
  Gossip(std::unique_ptr<Transport> transport, GossipOptions options,
         std::vector<std::unique_ptr<HeldBlock>> blocks, Log log,
         std::shared_ptr<Timeline> timeline = nullptr);
  ~Gossip() override;

  // Waits until all neighbours are connected. Throws Error and names the missing ones, also when
  // interrupted.
  void meet();

  // --- on the training thread ---
  // Calls f, which first mixes the momentum up to now, all of it. f adds the same to x and to x~.
  void gradient(int block, const std::function<void(const Held&)>& f);
  void stepped();
  // Calls f with x and x~ as they are, without the momentum since they were last touched.
  void look(int block, const std::function<void(const Held&)>& f);
  GossipClock clock() const;
  void set_clock(GossipClock clock);
  // When pause() returns, no averaging is in flight, unless a neighbour has stopped. Then it
  // returns twice the patience after the last progress, or when it is interrupted. x and x~ have
  // the momentum up to then. No time passes for them until resume().
  void pause();
  // This worker makes no gradients until resume(). With pushes, no worker then pushes to it,
  // because it would keep the mass. Its y goes to one neighbour that does not stand by.
  bool stand_by();
  void resume();
  // Called while all stand still, before x is replaced at all workers. Exchanges in doubt, or given
  // up, no longer count when they are decided.
  void forget();

  GossipStatistics statistics() const;

 private:
  struct Block {
    std::mutex mutex;  // guards the members below
    std::unique_ptr<HeldBlock> held;
    Time mixed{};  // the time up to which the momentum is mixed in
  };
  struct Swap {
    SentBlock mine, theirs;
    Direction direction;
    bool counts = true;  // forget() has not been called since
    bool given = false;  // its pushed mass is no longer mine
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
    std::vector<std::uint64_t> told;  // made_ of that peer
    std::optional<Time> asked;        // the time of my request that has no answer yet
    Inbox inbox;
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
    bool gives_all = false;     // of y
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
  Payload told() const;
  void hear(const Peer& peer);
  bool pushes() const { return options_.exchanged == Exchanged::pushes; }
  bool weighs() const { return pushes() && !options_.tracks; }
  Direction direction(bool i_asked) const;
  void take(Peer& peer, std::size_t block, const Swap& swap, bool late);  // the arrived data
  void give(std::size_t block, Swap& swap);                               // for pushes
  void take_back(std::size_t block, Swap& swap);                          // if it was given
  void average(Peer& peer, std::size_t block, const Swap& swap);
  void move(std::size_t block, double share, const SentBlock& q);
  double momentum_to_now(Block& block) const;
  void end_averaging();
  void note_progress();  // in the averaging
  void look_at_pairing();
  Peer& peer(int rank) { return *peers_[static_cast<std::size_t>(rank)]; }
  void clock_strikes();
  void begin_gradient();
  void hand_over();
  double dice();  // these two with the lock
  double until_next();
  void tick();
  std::size_t bytes(std::size_t block) const {
    const std::size_t x = sizes_[block], beside = options_.tracks ? x : weighs() ? kWeightValues : 0;
    return block_bytes(options_.wire, x + beside);
  }
  GossipStatistics::Neighbour& counted(int rank);

  const GossipOptions options_;
  const Log log_;
  const std::shared_ptr<Timeline> timeline_;
  std::vector<std::size_t> sizes_;
  std::size_t values_ = 0;  // of all blocks
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; my own is unused
  mutable Monitor monitor_;
  WorkerLinks links_;
  Actions actions_{*this};
  Pairing pairing_;
  std::optional<Averaging> averaging_;
  std::optional<Timeline::Scope> span_;  // of the averaging
  BufferPool pool_;
  int struck_ = 0;           // clock events while it was paused, in the gradient before
  bool hands_over_ = false;  // the next push hands over all of y
  std::vector<int> heirs_;   // then: the possible receivers; empty once it has gone

  // With the monitor's lock.
  std::vector<std::uint64_t> made_;  // gradients by rank, as far as this worker knows
  bool idle_ = true, paused_ = false;
  Time moved_{};  // time of the averaging's last progress
  std::optional<Time> last_gradient_;
  GossipClock clock_;
  GossipStatistics statistics_;

  std::atomic<double> gradient_seconds_ = 0;  // 0: not known yet

  std::unique_ptr<Transport> transport_;  // last: its thread ends before anything else goes
};

}  // namespace starling
