// The protocol of a group of three or more workers that all take the mean of their blocks: all of
// them commit, or none.
//
//   shard       each member owns one, of about a g-th of the block
//   ready       my block is written and, if it is large, none of an earlier round is in flight to
//               or from me. The parts of a large one go when all are ready, as on an edge
//   part        of my block, a member's shard: goes to this member              (reduce-scatter)
//   mean        of my shard over all members: goes to all of them               (all-gather)
//               Both go to a few members at a time if there are many (in_turn.h)
//   ACK         my vote: all means are here and checked, I can mix. It cannot be taken back
//   ABORT       replaces my vote before it was given, never after; goes to all
//   committed   all have voted: all mix.   aborted: none mixes the mean
//   in doubt    a connection broke after my vote and before the other's: go on without it, keep
//               block and mean, and ask all members. If one of them committed, the difference is
//               mixed late
//
// Each member sends 2 M (g - 1) / g bytes instead of the M (g - 1) of pairs, where M is the block.
// In return, a failure of one member affects the group. An aborted group therefore goes on in
// pairs, in the same round, over the edges (edge.h) of the present members. Only a member that the
// others went on without does not.
//
// A state machine without threads, I/O or clock: events in, actions out. Rounds of one block only
// ever rise.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "starling/exchange/edge.h"
#include "starling/transport/frame.h"

namespace starling {

// The actions that the group requests, from within its event functions. They must not call back
// into it, except decided(), the last act of each, which may ask questions and call release().
class GroupActions {
 public:
  virtual ~GroupActions() = default;
  virtual void send_parts(SwapId id) = 0;
  virtual void send_mean(SwapId id) = 0;  // all parts of my shard are here
  virtual void cancel(SwapId id) = 0;     // its queued rest need not be sent
  // yes: of an outcome, committed; of an abort, that I went on and the peer is behind.
  virtual void send(int peer, FrameType type, SwapId id, bool yes = false) = 0;
  // Exactly once per start(). in_pairs: aborted, and to be tried over the edges.
  virtual void decided(SwapId id, Outcome outcome, bool in_pairs) = 0;
  virtual void mended(SwapId id, bool committed) = 0;  // once per swap in doubt
};

// All group swaps of one worker.
class Group {
 public:
  explicit Group(GroupActions& actions) : actions_(actions) {}

  // --- from this worker ---
  // My block is ready. possible = false: not all of them are there, or my block must not be mixed.
  void start(SwapId id, std::set<int> others, bool possible, Sending sending = Sending::at_once);
  // My parts of when_all_are_ready may go now.
  void release(SwapId id);
  // I do not want to wait any longer. False if I have voted: then only the others or a broken
  // connection decide.
  bool give_up(SwapId id);
  // I jump to `round`; I never started the swaps before it that are still missing.
  void skip(std::uint64_t round);

  // --- from the network ---
  void connected(int peer);
  void disconnected(int peer);
  void gone(int peer);  // after disconnected(), for good: it cannot be asked any more
  // Whole and checked, or not to be used. Only of members of this swap's group.
  void part(int peer, SwapId id, bool good);
  void mean(int peer, SwapId id, bool good);
  // group_ready, group_ack, group_abort, group_query, group_outcome
  void frame(int peer, FrameType type, SwapId id, bool yes);
  // It will not send the rounds below this one that it has not started.
  void skipped(int peer, std::uint64_t round);

  // --- questions ---
  bool wants_part(int peer, SwapId id) const;
  bool wants_mean(int peer, SwapId id) const;
  bool past(SwapId id) const { return !swaps_.contains(id) && started_.past(id); }  // decided, or skipped
  std::vector<SwapId> open() const { return open_of(swaps_); }
  // The swap is open, and a message of this peer is still to come.
  bool waits_for(SwapId id, int peer) const;
  // For an open swap: the members that are not ready, or whose part has not come; and those that
  // have not voted.
  std::set<int> not_started(SwapId id) const;
  std::set<int> not_voted(SwapId id) const;
  // Are large parts or means of an earlier round in flight?
  bool moves_before(std::uint64_t round) const;

 private:
  struct Swap {
    bool ready = false;    // started by me
    bool held = false;     // my parts wait to be released
    bool unsent = false;   // they wait for the others
    bool refused = false;  // a part came that must not be used
    bool aborted = false;  // by another, before I was ready
    bool behind = false;   // and it went on without me
    bool reduced = false;  // all parts were here
    bool voted = false;
    std::set<int> others;
    std::set<int> readies, parts, means, votes;  // the members whose messages are here
    std::set<int> asking;                        // they are in doubt
  };
  struct Doubt {
    std::set<int> others;
    std::set<int> unanswered;
  };
  void send_if_all_are_ready(SwapId id);
  void proceed(SwapId id);
  void abort_all(SwapId id, bool went_on = false);  // except those that have not started
  void decide(SwapId id, Outcome outcome, bool in_pairs = false);
  void resolve(SwapId id, bool committed);
  void answer(int peer, SwapId id);

  GroupActions& actions_;
  std::map<SwapId, Swap> swaps_;  // open, or begun by others before I was ready
  Started started_;
  std::map<int, std::uint64_t> floors_;  // the peers': nothing comes below
  std::map<SwapId, Doubt> doubts_;
  std::set<int> gone_;
  // Per block and group the last committed round: a member may be in doubt of it, and of no earlier
  // one.
  std::map<std::pair<std::uint32_t, std::set<int>>, std::uint64_t> committed_;
};

}  // namespace starling
