// The connections of a worker with the others: which have been met, are heard, are late or gone.
// For an exchange and for gossip.
//
//   met       it has been connected at least once
//   silent    no byte has come from it for some seconds
//   absent    it was late or silent, or pauses: nobody waits for it until it goes on
//   left      it said goodbye
//   lost      its process is gone
//   departed  it has left, or its process has certainly ended
//   unseen    a member that has not departed, and of which no byte has come for some seconds
//
// On the transport's thread, except where stated.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "starling/core/clock.h"
#include "starling/core/log.h"
#include "starling/core/seldom.h"
#include "starling/exchange/monitor.h"
#include "starling/transport/transport.h"

namespace starling {

struct LinkOptions {
  std::set<int> neighbours{};
  std::set<int> away{};   // no members: never connected, as if they had left
  bool needs_all = true;  // meet() throws without all neighbours; else it warns
  std::chrono::milliseconds silent{5'000};
  Log log{};
  std::function<void(int)> greet = [](int) {};  // tells a worker that was away where I am
};

// "worker 2" or "workers 1, 2".
std::string name_of_workers(const std::set<int>& ranks);

class WorkerLinks {
 public:
  // The transport and the monitor outlive it.
  WorkerLinks(Transport& transport, Monitor& monitor, LinkOptions options);

  // --- on the training thread ---
  // Wants connections with all other members. They come by and by.
  void open_all();
  // Wants connections with the neighbours, and waits until each has been met. Throws Error (or
  // warns: LinkOptions::needs_all), naming the missing, also when interrupted, or once one is lost
  // before it was met.
  void meet(std::chrono::milliseconds patience);

  // --- with the monitor's lock, on any thread ---
  const std::set<int>& absent_ranks() const { return absent_; }
  const std::set<int>& gone() const { return gone_; }
  // Those that have left, or whose processes have ended. None while another one is silent: nobody
  // knows whether it has ended.
  std::set<int> departed() const;
  const std::set<int>& unseen() const { return unseen_; }
  // More than half of the members that have not departed are seen, with me; or half of them, with
  // the lowest rank. So two parts of a network are never both of these.
  bool sees_majority() const;
  bool is_connected(int rank) const { return connected_.contains(rank); }
  bool hears(int rank) const { return connected_.contains(rank) && !silent_.contains(rank); }

  // --- what the transport reports ---
  void connected(int rank);
  void disconnected(int rank, const std::string& reason);
  void lost(int rank, const std::string& reason);
  void ended(int rank);                                 // after it was lost
  void never_met(int rank, const std::string& reason);  // it is lost: ends meet()
  void heard(int rank) { at(rank).heard = transport_.now(); }

  // --- which take part ---
  bool is_neighbour(int rank) const { return options_.neighbours.contains(rank); }
  bool absent(int rank) const { return at(rank).absent; }
  bool left(int rank) const { return at(rank).left; }
  bool is_away(int rank) const { return options_.away.contains(rank); }
  std::set<int> members() const;
  // True if it can take part in a swap of this round.
  bool present(int rank, std::uint64_t round) const;
  std::set<int> there() const;  // may come to an average, with me. Takes the lock
  void mark_absent(int rank, const std::string& why);
  void mark_present(int rank);  // it has spoken
  void mark_left(int rank, bool failed);
  // It waits in an average that I have not begun; it has started the rounds up to this one and no
  // more.
  void mark_averaging(int rank, std::uint64_t average, std::uint64_t round);
  void end_averaging(int rank) { at(rank).averaging.reset(); }  // its steps go on
  void end_averages(std::uint64_t average);                     // up to this one

  // --- votes ---
  // I gave up on it, but had voted: only its vote or a broken connection decides. Breaks a
  // connection that stays silent on it.
  void wait_for_vote(int rank);
  void has_voted(int rank) { at(rank).owes_vote.reset(); }

  // It claims what cannot be: breaks the connection, and says so once.
  void refuse(int rank, const std::string& claim);

  // --- time ---
  void start() { started_ = ticked_ = transport_.now(); }  // once, before the first tick
  // Says to all that were met that I am alive, and names those that are silent, with why.
  void tick(const std::function<void(int rank, const std::string& why)>& on_silent);
  void say_alive(int rank);
  // I make no steps from now on, or make steps again. Says so to all that were met.
  void pause(bool pauses);
  // True if a tick is long overdue, or was until a short time ago: others may have lost patience
  // with me in that time.
  bool slept() const { return overdue() > options_.silent / 2; }
  // True if I slept so long that I am silent for others. There must be others.
  bool was_away() const { return overdue() > options_.silent && transport_.size() > 1; }
  bool slept_lately() const { return slept() || (woke_ && transport_.now() - *woke_ <= options_.silent); }
  void control(int rank, FrameType type, std::uint64_t value = 0);
  void leave(bool failed);  // tells all that were met

 private:
  // For one worker.
  struct State {
    bool met = false;
    bool absent = false;
    bool left = false;
    bool refused = false;
    Seldom late{};  // the message
    Time heard{};
    std::optional<Time> owes_vote{};                                     // since when
    std::optional<std::pair<std::uint64_t, std::uint64_t>> averaging{};  // average, round
  };
  State& at(int rank) { return states_[static_cast<std::size_t>(rank)]; }
  const State& at(int rank) const { return states_[static_cast<std::size_t>(rank)]; }
  Duration overdue() const { return transport_.now() - ticked_; }
  bool silent(int rank) const { return ticked_ - at(rank).heard > options_.silent; }
  void note_unseen();

  Transport& transport_;
  Monitor& monitor_;
  const LinkOptions options_;
  std::vector<State> states_;  // by rank; my own is unused
  // The last tick: a worker that was not heard long before it is silent, even if I slept since.
  Time ticked_{};
  std::optional<Time> woke_;  // from the last long sleep
  Time started_{};
  bool pauses_ = false;

  std::set<int> connected_, met_;  // now; ever. These seven with the monitor's lock
  std::set<int> absent_;
  std::set<int> silent_;
  std::set<int> unseen_;
  std::set<int> gone_;
  std::set<int> departed_;
  std::map<int, std::string> never_met_;  // and lost, with the reason; with the lock too
};

}  // namespace starling
