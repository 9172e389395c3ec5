// The exact average of a vector over all present workers, over the edges, without a coordinator.
//
// The workers first agree on the participants P. Then they run one period of base-2 over P, whose
// product is the averaging matrix for every |P|. Then they make sure that all of P have the result:
//
//   join    "I take part in average `id`, attempt `a`, and see the participants P", to all in P.
//           The rounds begin when all in P have said the same. A worker that hears of a later
//           attempt or a smaller P adopts it and says so.
//   share   my partial average, to this round's neighbours
//   done    I have the result of attempt a. The average ends when all in P have said so.
//   quit    I do not take part in average `id` any longer: strike me out
//
// A worker that dies or falls silent before the end is struck from P, and the others begin a new
// attempt from their own values. A worker that still joins an average that others have ended is
// told. It has the result already (it was only waiting for lost workers), or it was struck out: it
// quits, and keeps its own values.
//
// An average is named by the operation that it is a part of, and by its number therein (AverageId).
// All workers may come to the first part. The others are for those that took part in the one
// before: a worker that did not keeps its own values at once. So what it calls within an operation
// disturbs nobody.
//
// Workers that were away may find only each other again, and are then no survivors of the run. So a
// worker that was away takes part only with more than half of those of its last average. If all
// pause that see too few, those that have ended do not count, and half of the others are enough
// with the lowest rank.
//
// A state machine without threads, I/O or clock: events in, actions out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "starling/topology/graph.h"

namespace starling {

// Operations rise by one with each call of a worker, so that equal calls meet.
struct AverageId {
  std::uint64_t operation = 0;
  std::uint16_t part = 0;

  // In a frame.
  static AverageId of(std::uint64_t word) { return {word >> 16, static_cast<std::uint16_t>(word)}; }
  std::uint64_t word() const { return operation << 16 | part; }
  auto operator<=>(const AverageId&) const = default;
  // Whether a worker that is out of `earlier` is out of this one too.
  bool follows(AverageId earlier) const { return operation == earlier.operation && part >= earlier.part; }
};

class AverageActions {
 public:
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;
  virtual ~AverageActions() = default;
  virtual void send_join(int peer, AverageId id, std::uint32_t attempt,
                         const std::set<int>& participants) = 0;
  virtual void send_share(int peer, AverageId id, std::uint32_t attempt, std::uint32_t step, Bytes share) = 0;
  // ended: this average is over for me, with the result of this attempt, or goes on without you.
  virtual void send_done(int peer, AverageId id, std::uint32_t attempt, bool ended) = 0;
  virtual void send_quit(int peer, AverageId id) = 0;
  // values: the average. participants is empty if this worker was struck out, or has quit: values
  // are then its own.
  virtual void averaged(Bytes values, const std::set<int>& participants) = 0;
};

class Average {
 public:
  using Bytes = AverageActions::Bytes;
  // mine <- mine + Sum_j w_j (theirs_j - mine), or the larger of each; neighbours by rising rank.
  struct Share {
    double weight;
    Bytes bytes;
  };
  using Combine =
      std::function<std::vector<std::byte>(const std::vector<std::byte>& mine, std::span<const Share>)>;

  // workers: that could take part so far.
  Average(int rank, AverageActions& actions, std::set<int> workers = {})
      : rank_(rank), actions_(actions), company_(std::move(workers)) {}

  // Begins an average, later than all before. there: the present workers as far as I know, with me.
  void begin(AverageId id, Bytes mine, std::set<int> there, Combine combine);
  bool running() const { return running_; }
  // The running or the last average.
  AverageId id() const { return id_; }
  // I was silent for so long that the others may have gone on without me.
  void was_away() { struck_out_ = true; }
  // The same, and I have paused meanwhile, as all do that see too few of the others.
  void has_paused() { struck_out_ = paused_ = true; }
  // The peer's process has certainly ended.
  void has_ended(int peer) { ended_.insert(peer); }
  // Ends the running average with my own values; the others do without me.
  void quit();
  // The workers that this average still waits for; empty when not running.
  std::set<int> awaited() const;
  // Whether this worker has joined the running average.
  bool has_come(int peer) const;
  // Those that are awaited and have not stated this attempt, or all of them if all have.
  std::set<int> late() const;

  // Messages of a peer. A peer whose attempt is far ahead of mine is struck out, because attempts
  // rise by one, and all workers follow.
  void joined(int peer, AverageId id, std::uint32_t attempt, const std::set<int>& participants);
  // Only whole and checked shares. For a damaged one call trouble().
  void share(int peer, AverageId id, std::uint32_t attempt, std::uint32_t step, Bytes share);
  void done(int peer, AverageId id, std::uint32_t attempt, bool ended);
  void has_quit(int peer, AverageId id);
  // The peer is gone, or silent for too long: it is struck out.
  void gone(int peer);
  // A message from or to the peer was lost, but the peer is there: begins a new attempt.
  void trouble(int peer);
  // The peer's connection is up (again): it may have missed my join.
  void up(int peer);

 private:
  struct Join {
    AverageId id{};
    std::uint32_t attempt = 0;
    std::set<int> participants;
  };
  void attempt(std::uint32_t number, std::set<int> participants);
  void proceed();  // as far as the present messages allow
  void run_rounds();
  void strike_out(int peer);
  void tell_end(int peer, AverageId id);
  // In this attempt, with any participants.
  bool joined(int peer) const { return has_come(peer) && heard_.at(peer).attempt == join_.attempt; }
  bool everyone_joined() const;
  bool is_outside() const;
  void finish(Bytes values, const std::set<int>& participants);

  const int rank_;
  AverageActions& actions_;
  Combine combine_;

  bool running_ = false;
  AverageId id_{};
  std::set<int> last_;       // the participants of the last average: none if I did not take part
  std::set<int> company_;    // workers in the last average that I took part in
  std::set<int> ended_;      // whose processes have
  bool paused_ = false;      // since then
  bool struck_out_ = false;  // perhaps, since then; see is_outside()
  Join join_;                // my last statement
  Bytes original_, now_;     // my values at the start; my partial average
  bool rounds_ = false;      // everyone has joined: the rounds of this attempt run
  bool have_result_ = false;
  std::pair<AverageId, std::uint32_t> result_;  // the last: of which average and attempt
  std::set<int> members_;                       // P of the running rounds, or of my result
  Schedule schedule_;                           // over positions in members_
  std::uint32_t step_ = 0;
  bool sent_ = false;          // my share of this step
  std::map<int, Join> heard_;  // last join of each peer
  // In my last statement's attempt: a peer that sends a share has heard all of us state it.
  std::map<std::uint32_t, std::map<int, Bytes>> shares_;  // step -> peer
  std::set<int> done_;                                    // have the result
  std::optional<AverageId> i_quit_;                       // the last one, or was struck out of it
  std::map<int, AverageId> has_quit_;                     // by peer
};

}  // namespace starling
