// The protocol by which two neighbours agree to average, without a coordinator.
//
//   want     an averaging with this neighbour is due, by the worker's clock
//   ask      "will you average with me now?"
//   answer   yes, and both begin. Or "I am busy", at once: the asker tries again a little later,
//            and may be asked in between. Or no, while it declines: that averaging is dropped
//   number   of an averaging on its edge. It only ever rises, at both ends. Odd if the lower rank
//            has asked, else even
//
// A worker takes part in one averaging at a time. A worker that waits for an answer is busy too. If
// all ask in a cycle, all are refused once; each then waits for a random time, so they find each
// other. If two ask each other, the lower rank's request counts. If an answer does not come in time
// (the neighbour was stopped, or is gone), the asker is free, and asks that neighbour nothing until
// it speaks. If that neighbour then says yes after all, the averaging begins, or is refused if
// another one is in flight. The time limit adapts to that neighbour's usual answer time.
//
// A state machine without threads, I/O or clock: events in, actions out.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "starling/core/clock.h"

namespace starling {

// The values on the wire.
enum class Answer : std::uint8_t { busy = 0, yes = 1, no = 2 };

class PairingActions {
 public:
  virtual ~PairingActions() = default;
  virtual void ask(int peer, std::uint64_t number) = 0;
  virtual void answer(int peer, std::uint64_t number, Answer answer) = 0;
  // Begins the averaging with this number, which I or the peer asked for. ended() must follow.
  virtual void begin(int peer, std::uint64_t number, bool i_asked) = 0;
  // The peer has begun the averaging that I asked for; I do not.
  virtual void refuse(int peer, std::uint64_t number) = 0;
  // Calls alarm() with this number after this time.
  virtual void wake(std::uint64_t alarm, Duration after) = 0;
};

struct PairingStatistics {
  // By me; refused by a busy neighbour; not answered in time.
  std::uint64_t asked = 0, refused = 0, unanswered = 0;
  std::uint64_t begun = 0;  // with any asker
  // Due averagings that were dropped: too many were due, or the neighbour was absent or declined.
  std::uint64_t dropped = 0;
};

class Pairing {
 public:
  struct Patience {
    // Time limit of an answer: kAnswers times this neighbour's usual time, but at least `answer`,
    // and at most kMost times that.
    Duration answer = std::chrono::milliseconds(200);
    static constexpr int kAnswers = 3, kMost = 10;
    // Mean time before the first new attempt; twice that before the next.
    Duration again = std::chrono::milliseconds(1);
  };
  // The largest number of averagings that may be due at once; others are dropped.
  static constexpr std::size_t kMostDue = 8;
  // The wait after this many refusals in a row: between half and one and a half times the mean, by
  // `dice` in [0, 1].
  static Duration rest(const Patience& patience, int refusals, double dice);

  Pairing(int rank, std::uint64_t seed, Patience patience, PairingActions& actions)
      : rank_(rank), seed_(seed), patience_(patience), actions_(actions) {}

  void want(int peer);
  // Nothing new is wanted or begun until resume(); averagings in flight go on.
  void pause() { paused_ = true; }
  // Declines averagings that others ask for until resume(); my own go on.
  void decline() { declines_ = true; }
  void resume();

  // The peer's connection exists; it is gone. After up() numbers continue.
  void up(int peer);
  void down(int peer);
  // Messages.
  void asked(int peer, std::uint64_t number);
  void answered(int peer, std::uint64_t number, Answer answer);
  // Before answered(): the time from the request to the answer.
  void answer_took(int peer, Duration took);
  // The averaging of begin() has ended, in any way.
  void ended();
  void alarm(std::uint64_t number);

  bool idle() const { return !asking_ && !averaging_; }
  std::size_t due() const { return due_.size(); }
  std::uint64_t number(int peer) { return peers_[peer].number; }  // of the last averaging
  const PairingStatistics& statistics() const { return statistics_; }

 private:
  struct Peer {
    bool up = false;
    bool silent = false;       // it owes me an answer
    Duration answers{};        // smoothed answer time, like TCP's round trips (RFC 6298)
    std::uint64_t number = 0;  // the last one used on this edge
  };
  struct Ask {
    int peer = 0;
    std::uint64_t number = 0;
  };
  void proceed();
  void begin(int peer, std::uint64_t number);
  bool i_ask(int peer, std::uint64_t number) const { return (number % 2 == 1) == (rank_ < peer); }
  std::uint64_t next_number(int peer, std::uint64_t after, bool i_ask) const {
    return this->i_ask(peer, after + 1) == i_ask ? after + 1 : after + 2;
  }
  std::uint64_t wake(Duration after);

  const int rank_;
  const std::uint64_t seed_;
  const Patience patience_;
  PairingActions& actions_;
  std::map<int, Peer> peers_;
  std::deque<int> due_;
  std::optional<Ask> asking_;
  bool averaging_ = false, paused_ = false, declines_ = false, resting_ = false;
  int refusals_ = 0;  // in a row
  std::uint64_t alarms_ = 0;
  std::uint64_t answer_alarm_ = 0, rest_alarm_ = 0;
  PairingStatistics statistics_;
};

}  // namespace starling
