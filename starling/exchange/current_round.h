// The current round of a worker, and how it catches up with neighbours that went on without it.
//
// A round begins with the first block of a step and rises by one. A worker whose neighbours went on
// without it asks them where they are and jumps to their round; the rounds between count as aborted
// at both ends.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>

#include "starling/exchange/contents.h"
#include "starling/exchange/links.h"
#include "starling/exchange/meetings.h"
#include "starling/exchange/monitor.h"

namespace starling {

class CurrentRound {
 public:
  // All of them outlive it.
  CurrentRound(const Meetings& meetings, const Layout& layout, Monitor& monitor)
      : meetings_(meetings), layout_(layout), monitor_(monitor) {}

  // --- on any thread; these take the lock ---
  std::uint64_t next() const {
    return monitor_.locked([this] { return round_ + 1; });
  }
  // Can a worker be at this round? It has had no time for more. (Gossip and averages have numbers
  // of their own.)
  bool possible(std::uint64_t round) const;

  // --- on the training thread, with the lock ---
  std::uint64_t now() const {
    return round_;
  }  // of the blocks that are started now, from 1; 0 before the first
  // True if all blocks of this round are started.
  bool complete() const { return round_ == 0 || started_ == layout_.blocks(); }
  bool left_behind() const { return !went_on_.empty(); }  // neighbours went on without me
  // Asks the neighbours that went on without me where they are, and waits for their answers.
  void catch_up(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds patience, Transport& transport,
                WorkerLinks& links);
  std::uint64_t begin();  // returns how many rounds it skips
  // True with the last block of a round that was jumped to: only now is every swap of the last
  // round decided, on all blocks.
  bool start_block() { return ++started_ == layout_.blocks() && jumped_; }
  void restart(std::uint64_t farthest, std::uint64_t position);
  // The schedule's place within the cycle: the next round, or the one that is in flight.
  std::uint64_t position(bool in_flight) const { return (in_flight ? round_ - 1 : round_) % layout_.cycle(); }

  // --- on the transport's thread ---
  void is_at(int rank, std::uint64_t round);  // the neighbour's next one
  // True if this neighbour's frames of the round are kept: those up to a horizon beyond where I am
  // or jump to, so that nobody fills my memory. A frame from beyond it says where the neighbour is.
  bool expects(int rank, std::uint64_t round);
  void went_on(int rank);   // without me
  void has_said(int rank);  // where it is

 private:
  // The farthest round that I believe to be begun, or mine. Locks.
  std::uint64_t known() const {
    return monitor_.locked([this] { return std::max(round_ + 1, jump_to_); });
  }
  std::uint64_t horizon() const;  // rounds beyond known()

  const Meetings& meetings_;
  const Layout& layout_;
  Monitor& monitor_;

  // With the monitor's lock.
  std::uint64_t round_ = 0;
  std::size_t started_ = 0;    // blocks of this round
  bool jumped_ = false;        // it is not the one after the last
  std::uint64_t jump_to_ = 0;  // others are at this round already
  // Without me, or broke off while I slept. I have not heard since where they are.
  std::set<int> went_on_;
};

}  // namespace starling
