// The protocol of one edge: both ends of an exchange commit it, or neither does.
//
//   swap        one exchange of one block in one round with this neighbour
//   ready       my wire block is written and, if it is large, none of an earlier round is in flight
//               to or from me. A large block goes when the peer is ready too. A link then serves
//               first the block that a worker waits for: a worker that is ahead does not send into
//               the last round of a neighbour
//   checked     the peer's block has come whole, its checksum agrees, its numbers are finite
//   ACK         my vote: ready and checked. It cannot be taken back
//   ABORT       replaces my vote before it was given, never after. (On a directed edge the sender
//               votes at once. Its ABORT after that is a request, which the receiver grants by an
//               ABORT of its own if it has not voted yet)
//   committed   both voted: both mix.   aborted: neither mixes, the weight stays with each
//   in doubt    the connection broke after my vote and before the peer's: go on without it, keep
//               both blocks, and ask the peer when it is back. If it committed, the difference is
//               mixed late. Differences add up, so the sum of all parameters is restored exactly
//
// A state machine without threads, I/O or clock: events in, actions out. Rounds of one block only
// ever rise.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "starling/transport/frame.h"

namespace starling {

struct SwapId {
  std::uint64_t round = 0;
  std::uint32_t block = 0;
  auto operator<=>(const SwapId&) const = default;
};

// How far a worker has come with the swaps of an edge or a group.
struct Started {
  std::map<std::uint32_t, std::uint64_t> next;  // block -> last round that I started or passed, plus 1
  std::uint64_t floor = 0;                      // I skipped the rounds below it that I had not started

  bool past(SwapId id) const {
    const auto found = next.find(id.block);
    return id.round < floor || (found != next.end() && id.round < found->second);
  }
};

// Those that I have started, of swaps that are not decided.
template <class Swap>
std::vector<SwapId> open_of(const std::map<SwapId, Swap>& swaps) {
  std::vector<SwapId> ids;
  for (const auto& [id, swap] : swaps) {
    if (swap.ready) ids.push_back(id);
  }
  return ids;
}

// The senders of a swap. In symmetric graphs both send. A directed edge has a sender and a
// receiver; both still vote.
struct Direction {
  bool send = true;
  bool receive = true;
};

// The time when my block goes to partners that send one too; all of them choose the same.
// when_all_are_ready: I am ready once it is released.
enum class Sending { at_once, when_all_are_ready };
// Blocks of up to this many bytes arrive before they could delay others.
inline constexpr std::size_t kSentAtOnce = 64 << 10;

enum class Outcome { committed, aborted, in_doubt };
const char* name_of(Outcome outcome);

// The actions that the edge requests, from within its event functions. They must not call back into
// the edge, except decided(), the last act of each, which may ask questions and call release().
class EdgeActions {
 public:
  virtual ~EdgeActions() = default;
  virtual void send_block(SwapId id) = 0;
  virtual void cancel_block(SwapId id) = 0;  // its queued rest need not be sent
  // yes: of an outcome, committed; of an abort, that I went on and the peer is behind.
  virtual void send(FrameType type, SwapId id, bool yes = false) = 0;
  virtual void decided(SwapId id, Outcome outcome) = 0;  // exactly once per start()
  // Once per swap in doubt, if the peer comes back.
  virtual void mended(SwapId id, bool committed) = 0;
};

class Edge {
 public:
  explicit Edge(EdgeActions& actions) : actions_(actions) {}

  // --- from this worker ---
  //
  // My block is ready. usable = false: it must not be mixed (not finite), and the swap is aborted
  // at both ends. If the peer cannot take part now (not connected, in doubt of an earlier swap),
  // the swap is aborted at once.
  void start(SwapId id, Direction direction, bool usable = true, Sending sending = Sending::at_once);
  // My block of when_all_are_ready may go now.
  void release(SwapId id);
  // I go on without this neighbour. It is told once it sends for this swap. decided(aborted)
  // follows.
  void pass(SwapId id, Direction direction = {});
  // This swap was settled without the edge (in a group). The peer is told if it tries over the
  // edge.
  void settle(SwapId id);
  // I do not want to wait any longer. False if I have voted: then only the peer or a broken
  // connection decides. (A worker that only sends has voted before the peer began. It asks the peer
  // to abort if that has not voted.)
  bool give_up(SwapId id);
  // I jump to `round`; I never started the swaps before it that are still missing.
  void skip(std::uint64_t round);

  // --- from the network ---
  void connected();
  void disconnected();
  // The peer's block: whole and checked, or not to be used.
  void block(SwapId id, bool good);
  void frame(FrameType type, SwapId id, bool yes);

  // --- questions ---
  // May the peer's block of this swap still be mixed? Otherwise its bytes need not be kept.
  bool wants(SwapId id) const;
  // Has it come, and is the swap not decided yet? Then it must be kept, but no other is wanted.
  bool has(SwapId id) const;
  // Is it decided, or skipped?
  bool past(SwapId id) const { return !swaps_.contains(id) && started_.past(id); }
  bool up() const { return connected_ && doubts_.empty(); }
  // Is a large block of an earlier round on its way, here or there?
  bool moves_before(std::uint64_t round) const;
  std::vector<SwapId> open() const { return open_of(swaps_); }

 private:
  struct Swap {
    Direction direction;
    bool ready = false;  // started by me
    bool peer_ready = false;
    bool held = false;     // my block waits to be released
    bool unsent = false;   // it waits for the peer's
    bool checked = false;  // the peer's block is here
    bool voted = false;
    bool withdrawn = false;  // I only send, and have asked the peer to abort
    bool peer_voted = false;
    bool peer_aborted = false;
  };
  void send_if_both_are_ready(SwapId id, Swap& swap);
  void vote(SwapId id, Swap& swap);
  void decide(SwapId id, Outcome outcome);
  void answer(SwapId id);
  void settled();

  EdgeActions& actions_;
  bool connected_ = false;
  bool pushes_ = false;           // I was the sender of a directed swap
  std::map<SwapId, Swap> swaps_;  // open, or begun by the peer before I was ready
  Started started_;
  std::uint64_t peer_floor_ = 0;  // the peer will not send rounds below
  std::set<SwapId> doubts_;       // mine, unresolved
  // Per block the last committed swap: the peer may be in doubt.
  std::map<std::uint32_t, SwapId> committed_;
};

}  // namespace starling
