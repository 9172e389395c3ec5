// The exchange of a worker with its neighbours, hidden behind its computation.
//
//   training thread                         transport's thread
//   finish(b)   waits for the votes    <--  Edge: commit or abort, per neighbour and block
//   wire(b)     where to write x
//   start(b)    my block is ready      -->  Edge: send, check, vote
//
// The protocol of one edge is Edge's, that of a group Group's, that of an exact average Average's; here are the
// buffers, the rounds, the patience with late neighbours, and the two threads' meeting.
//
//   round      rises by one with each step: its blocks are started once each, in order. A worker whose neighbours went
//              on without it asks them where they are and jumps to their round; the rounds between count as aborted at
//              both ends
//   absent     a neighbour that was late or silent: not waited for again until a block of it comes, or word that it is ready
//   lost       its process is gone
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "starling/core/clock.h"
#include "starling/core/log.h"
#include "starling/core/timeline.h"
#include "starling/core/wait.h"
#include "starling/exchange/average.h"
#include "starling/exchange/contents.h"
#include "starling/exchange/edge.h"
#include "starling/exchange/group.h"
#include "starling/exchange/in_turn.h"
#include "starling/exchange/inbox.h"
#include "starling/exchange/sent_block.h"
#include "starling/topology/graph.h"
#include "starling/transport/transport.h"

namespace starling {

struct Patience {
  std::chrono::milliseconds meet{60'000};               // for all neighbours to come at the start
  std::chrono::milliseconds silent{5'000};              // no byte from a peer for so long: do not wait for it
  std::chrono::milliseconds stalled{600'000};           // alive, but its block does not come
  std::optional<std::chrono::milliseconds> max_wait{};  // instead of `stalled`, by choice
  Interrupted interrupted = nobody;                     // World::interrupted
};

// Whom I send to or receive from in a round.
struct Link {
  int rank = 0;
  float weight = 0;  // of what I receive
  float given = 0;   // of what I send: the receiver's weight
  Direction direction;
};

// A round of the schedule as one worker sees it.
struct Meeting {
  std::vector<Link> links;
  std::vector<int> group;  // by rank, with me, where we are three or more who take our mean; else empty
};

struct ExchangeStatistics {
  std::uint64_t rounds = 0;
  std::uint64_t skipped_rounds = 0;  // by jumping
  std::uint64_t committed = 0;       // blocks, summed over neighbours
  std::uint64_t aborted = 0;
  std::uint64_t late = 0;  // mixed late, after a broken connection was mended
  // Of the aborted ones those on directed edges where shares are not pushed: each moves the mean a little.
  std::uint64_t directed_aborted = 0;
  std::uint64_t bytes_sent = 0;      // over links, and what neighbours on this host read where it lies
  std::uint64_t bytes_in_place = 0;  // of these, the latter
  double seconds_waiting = 0;        // inside finish()
  std::set<int> lost;

  ExchangeStatistics& operator+=(const ExchangeStatistics& more);
};

struct ExchangeOptions {
  Patience patience{};
  Log log = [](Level, const std::string&) {};
  std::shared_ptr<Timeline> timeline{};
  Contents contents{};
};

class Exchange final : private TransportHandler {
 public:
  // block_sizes: values of each vector of a block (contents.h). The schedule's rank r is transport rank r. Every worker has the
  // same sizes and contents.
  Exchange(std::unique_ptr<Transport> transport, const Schedule& schedule,
           std::vector<std::size_t> block_sizes, ExchangeOptions options);
  ~Exchange() override;  // tells the others not to wait; takes at most a second

  // Waits until all neighbours of the schedule have been connected. Throws Error, naming who is missing, also when interrupted.
  // Connections with the others come by and by: an average needs them, and who comes late to one is then known to be there.
  // Where all come to averages at the same time, as with an all-reduce in each step, the first of them makes them.
  void meet();

  // --- one step, on the training thread ---
  // Waits until every swap of this block is decided, as long as Patience allows. What was committed, by rising rank,
  // then what was mended late; of pushes also what was given away. Valid until the block's next start().
  std::span<const Arrival> finish(int block);
  // Where to write what the neighbours will read: nowhere, values = null, in a round in which I meet nobody. Not the buffer that
  // arrivals hold as `mine`. Of modular codes the grid is the caller's to choose, and the Trailer behind them to write:
  // kernels/modular.h. The first block of a step begins the next round, so that it is known whose mask the block is written
  // with; where neighbours went on without me this first asks them which one, and waits for the answers as long as Patience
  // allows.
  Outgoing wire(int block);
  // The wire block is written. finite = false: the block is not sent, all neighbours go on without it.
  void start(int block, bool finite);

  // --- save and resume, on the training thread, between two steps ---
  // Where the schedule stands, counted from 0 within the cycle, one_in periods of it: the next round, or the one that is in
  // flight.
  std::uint64_t position(bool in_flight) const;
  // The one that has begun last, from 1; 0 before the first.
  std::uint64_t round() const;
  // Every worker calls it, with the same position. What is in flight is finished and dropped; the next wire() begins a
  // round of this position. Rounds themselves only ever rise.
  void restart(std::uint64_t position);

  // --- exact averages, on the training thread; every worker calls them in the same order ---
  // Returns the ranks that took part. Waits as long as the others live. Throws Error where another averages something else.
  std::set<int> average(std::span<float> values);
  std::set<int> maximum(std::span<std::int64_t> values);

  std::set<int> lost() const;
  ExchangeStatistics statistics() const;

 private:
  // A peer is never further ahead than a period or two, or after restart() a cycle; what claims to be is not kept, so that
  // nobody fills my memory.
  static constexpr std::uint64_t kHorizon = 1000;  // rounds, for control frames
  static constexpr std::size_t kEarly = 8;         // rounds, for blocks

  struct Block {
    std::shared_ptr<Buffer> next;   // what wire() gave out, to be written for the round that has begun
    int open = 0;                   // swaps not yet decided, a group's counts as one
    std::vector<Arrival> arrived;   // committed
    std::vector<Arrival> mended;    // committed late
    std::vector<Arrival> finished;  // what finish() returned
  };
  // One neighbour. Only the transport's thread touches it.
  struct Peer final : EdgeActions {
    Peer(Exchange& exchange, int rank)
        : exchange(exchange),
          rank(rank),
          edge(*this),
          blocks(kEarly * exchange.layout_.blocks(), exchange.layout_.wire()),
          parts(kEarly * exchange.layout_.blocks(), exchange.layout_.wire()) {}
    void send_block(SwapId id) override;
    void cancel_block(SwapId id) override;
    void send(FrameType type, SwapId id, bool yes) override;
    void decided(SwapId id, Outcome outcome) override;
    void mended(SwapId id, bool committed) override;
    // Can it take part in a swap of this round?
    bool present(std::uint64_t round) const;

    Exchange& exchange;
    const int rank;
    Edge edge;
    bool met = false;  // connected at least once
    bool absent = false;
    bool left = false;  // said goodbye
    // It waits in an average that I have not begun; it has started the rounds up to this one and no more.
    std::optional<std::pair<std::uint64_t, std::uint64_t>> averaging;  // id, round
    Time heard{};
    std::optional<Time> owes_vote;  // I gave up on it, but had voted already
    std::vector<std::byte> join;    // the payload of a join, being received
    Inbox blocks;
    Inbox parts;                                 // of my shard of a group's block
    Inbox means{Inbox::kUnbounded, Wire::fp32};  // of its shard
    Inbox shares{kEarly};                        // by attempt and step in place of round and block
    std::map<SwapId, Arrival> open;              // what will be mixed if the swap commits
    std::map<SwapId, Arrival> doubts;
    std::map<SwapId, Timeline::Scope> spans;  // of open swaps, where a timeline is kept
  };
  // Exchanges within groups: exchange_group.cpp. Only the transport's thread touches it.
  struct Grouping final : GroupActions {
    explicit Grouping(Exchange& exchange)
        : exchange(exchange),
          turns([this](int to, const Frame& frame,
                       const Payload& payload) { this->exchange.transport_->send(to, frame, payload); },
                [this] { return this->exchange.transport_->now(); }) {}
    void begin(SwapId id, std::shared_ptr<const Buffer> mine, bool finite);
    std::span<std::byte> place(Peer& peer, const Frame& frame);
    bool expects_part(const Peer& peer, const Frame& frame) const;
    bool received_in_place(Peer& peer, const Frame& frame, const Payload& payload);
    void received(Peer& peer, const Frame& frame, std::span<const std::byte> payload, bool intact);
    void send_parts(SwapId id) override;
    void send_mean(SwapId id) override;
    void cancel(SwapId id) override;
    void send(int peer, FrameType type, SwapId id, bool yes) override;
    void decided(SwapId id, Outcome outcome, bool in_pairs) override;
    void mended(SwapId id, bool committed) override;

    const std::vector<int>& members(SwapId id) const;
    bool member(int rank, const Frame& frame) const;  // of the group that this frame speaks of
    // The values of a wire block that a member owns: from, count.
    std::pair<std::size_t, std::size_t> shard(SwapId id, int rank) const;
    void received_part(Peer& peer, const Frame& frame, std::span<const std::byte> payload, bool intact);
    void received_mean(Peer& peer, const Frame& frame, std::span<const std::byte> payload, bool intact);
    void disconnected(int rank);
    // A part or a mean of so many bytes waits for its turn, and the receiver says when it has come.
    bool in_turn(SwapId id, std::size_t bytes) const;
    void send_payload(int to, const Frame& frame, const Payload& payload);
    void say_got(int from, const Frame& frame);

    struct Swap {
      std::shared_ptr<const Buffer> mine;
      std::shared_ptr<Buffer> mean;  // floats, whatever the wire: rounded, it would move the sum
      bool finite = true;
    };
    Exchange& exchange;
    std::vector<float> zeros;  // as many as my largest shard
    Group protocol{*this};
    InTurn turns;  // of parts and means
    std::map<SwapId, Swap> open, doubts;
  };
  struct Averaging final : AverageActions {
    explicit Averaging(Exchange& exchange) : exchange(exchange) {}
    void send_join(int peer, std::uint64_t id, std::uint32_t attempt,
                   const std::set<int>& participants) override;
    void send_share(int peer, std::uint64_t id, std::uint32_t attempt, std::uint32_t step,
                    Bytes share) override;
    void send_done(int peer, std::uint64_t id, std::uint32_t attempt, bool ended) override;
    void send_quit(int peer, std::uint64_t id) override;
    void averaged(Bytes values, const std::set<int>& participants) override;
    Exchange& exchange;
  };

  // TransportHandler, on the transport's thread.
  void connected(int peer) override;
  void disconnected(int peer, const std::string& reason) override;
  void lost(int peer, const std::string& reason) override;
  std::span<std::byte> place(int peer, const Frame& frame) override;
  void received(int peer, const Frame& frame, std::span<const std::byte> payload, bool intact) override;
  bool received_in_place(int peer, const Frame& frame, const Payload& payload) override;

  // On the transport's thread.
  Peer& peer(int rank) { return *peers_[static_cast<std::size_t>(rank)]; }
  const Meeting& meeting(std::uint64_t round) const { return meetings_[(round - 1) % meetings_.size()]; }
  void begin_swaps(int block, std::uint64_t round, std::shared_ptr<const Buffer> mine, bool finite);
  void begin_pairs(SwapId id, const std::shared_ptr<const Buffer>& mine, bool finite);
  void hold(SwapId id);
  void release();
  void skip_to(std::uint64_t round);
  void received_data(Peer& peer, const Frame& frame, std::span<const std::byte> payload, bool intact);
  bool expects(const Peer& peer, const Frame& frame) const;
  void say_damaged(int from, const Frame& frame) const;
  Inbox::Room room(std::size_t bytes);
  std::span<std::byte> place_share(Peer& peer, const Frame& frame);
  void received_share(Peer& peer, const Frame& frame, std::span<const std::byte> payload, bool intact);
  void received_join(Peer& peer, const Frame& frame, bool intact);
  void is_at(int rank, std::uint64_t round);  // its next one
  void went_on(int rank, bool without_me);
  // These on the training thread. wait(): core/wait.h.
  bool wait(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds patience,
            const std::function<bool()>& done);
  void open();  // wants connections with all others
  void begin_round(std::unique_lock<std::mutex>& lock);
  void catch_up(std::unique_lock<std::mutex>& lock);
  void mark_absent(Peer& peer, const std::string& why);
  void mark_present(Peer& peer);
  void give_up(std::uint32_t block, const std::string& why);
  void give_up_groups(std::uint32_t block, const std::string& why);
  void give_up_on(Peer& peer, std::uint64_t from_round);
  bool waits_for(const Peer& peer) const;
  void wait_for_vote(Peer& peer);
  bool slept() const;
  void tick();
  void control(int peer, FrameType type, std::uint64_t round, std::uint32_t block, std::uint64_t value);
  void say_alive(int peer);

  std::set<int> run_average(std::vector<std::byte> mine, Average::Combine combine,
                            std::span<std::byte> result);
  std::uint64_t next_round() const;  // takes the mutex
  std::uint64_t horizon() const { return next_round() + std::max(kHorizon, 2 * layout_.cycle()); }

  const std::vector<Meeting> meetings_;  // per round of the period
  const std::set<int> neighbours_;       // of all rounds
  const Patience patience_;
  const Log log_;
  const std::shared_ptr<Timeline> timeline_;
  const bool pushes_;
  const Layout layout_;
  BufferPool pool_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; my own is unused
  std::set<SwapId> held_;                     // with large blocks, until those of earlier rounds have come
  Time ticked_{};  // the last tick: whoever was not heard of long before it is silent, even if I slept since
  std::optional<Time> woke_;  // from the last long sleep: others may have lost patience with me in it
  Grouping grouping_;
  Averaging averaging_;
  Average average_;
  std::size_t average_bytes_ = 0;  // of the running average

  mutable std::mutex mutex_;  // guards what follows
  const std::unique_ptr<Condition> changed_;
  std::vector<Block> blocks_;
  std::uint64_t round_ = 0;    // of the blocks that are started now; the first is 1
  std::size_t started_ = 0;    // blocks of this round
  bool jumped_ = false;        // it is not the one after the last
  std::uint64_t jump_to_ = 0;  // others are at this round already
  std::set<int> went_on_;      // without me, or left me while I slept; I have not heard since where they are
  std::set<int> connected_, met_;  // now; ever
  std::set<int> absent_;
  std::set<int> gone_;
  std::optional<std::pair<Average::Bytes, std::set<int>>> averaged_;
  std::string average_failed_;  // why, where it is no average
  ExchangeStatistics statistics_;

  std::unique_ptr<Transport> transport_;  // last: its thread ends before anything else goes
};

}  // namespace starling
