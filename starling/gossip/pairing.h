// How two neighbours agree to average, without a coordinator.
//
//   want     an averaging with this neighbour is due (the worker's clock says so)
//   ask      "will you average with me now?"
//   answer   yes, and both begin; or "I am busy", at once: the asker tries again a little later, and meanwhile may be asked;
//            or no, while it declines: that averaging is dropped
//   number   of an averaging on its edge: only ever rises, at both ends. Odd where the lower rank has asked, else even
//
// One averaging at a time. Who has asked and waits for the answer is busy, too; so where all ask in a circle all are refused
// once, and as each waits for a time of its own they find each other. Where two ask each other, the lower rank's counts.
// An answer that does not come in time (the neighbour was stopped, or is gone) frees the asker, and nothing is asked of that
// neighbour until it speaks; where it then says yes after all, the averaging begins, or is refused if another one is under way.
// In time is what is not much later than that neighbour's answers are.
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

// As it goes over the wire.
enum class Answer : std::uint8_t { busy = 0, yes = 1, no = 2 };

class PairingActions {
 public:
  virtual ~PairingActions() = default;
  virtual void ask(int peer, std::uint64_t number) = 0;
  virtual void answer(int peer, std::uint64_t number, Answer answer) = 0;
  // The averaging of this number, for which I asked, or the peer did: ended() must follow.
  virtual void begin(int peer, std::uint64_t number, bool i_asked) = 0;
  // The peer has begun it, since I had asked; I do not.
  virtual void refuse(int peer, std::uint64_t number) = 0;
  // Call alarm() with this number after this time.
  virtual void wake(std::uint64_t alarm, Duration after) = 0;
};

struct PairingStatistics {
  std::uint64_t asked = 0, refused = 0, unanswered = 0;  // by me; of these by one that was busy; not in time
  std::uint64_t begun = 0;                               // whoever asked
  std::uint64_t dropped =
      0;  // averagings that were due when too many others were, or when the neighbour was not there or declined
};

class Pairing {
 public:
  struct Patience {
    // For an answer: kAnswers times as long as this neighbour takes, but at least `answer`, at most kMost times that.
    Duration answer = std::chrono::milliseconds(200);
    static constexpr int kAnswers = 3, kMost = 10;
    Duration again =
        std::chrono::milliseconds(1);  // on average before the first new attempt; twice that before the next
  };
  // How many averagings may be due at once; more are dropped.
  static constexpr std::size_t kMostDue = 8;
  // How long to wait after so many refusals in a row: between half and one and a half times the mean, as `dice` in [0, 1] says.
  static Duration rest(const Patience& patience, int refusals, double dice);

  Pairing(int rank, std::uint64_t seed, Patience patience, PairingActions& actions)
      : rank_(rank), seed_(seed), patience_(patience), actions_(actions) {}

  void want(int peer);
  // Nothing new is wanted or begun until resume(); what is under way goes on.
  void pause();
  // No averaging for which others ask is begun until resume(); my own go on.
  void decline() { declines_ = true; }
  void resume();

  // The peer's connection stands; it is gone. After up() numbers go on from where they were.
  void up(int peer);
  void down(int peer);
  // Messages.
  void asked(int peer, std::uint64_t number);
  void answered(int peer, std::uint64_t number, Answer answer);
  // Before answered(): it came so long after the question.
  void answer_took(int peer, Duration took);
  // What begin() began has ended, however.
  void ended();
  void alarm(std::uint64_t number);

  bool idle() const { return !asking_ && !averaging_; }
  std::size_t due() const { return due_.size(); }
  const PairingStatistics& statistics() const { return statistics_; }

 private:
  struct Peer {
    bool up = false;
    bool silent = false;       // it owes me an answer
    Duration answers{};        // how long its answers take: as TCP smooths its round trips (RFC 6298)
    std::uint64_t number = 0;  // the last one that was used on this edge
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
