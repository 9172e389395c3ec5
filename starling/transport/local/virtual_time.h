// A clock that stands while a thread computes, and jumps to the next event when all threads wait.
// The workers of a cluster can therefore be threads of one process, and results do not depend on
// the machine's speed or load.
//
// The threads take turns: one runs at a time, until it sleeps, waits or leaves. Then the next item
// in the order of (time, sequence) goes on: an event, on the thread that has just ended its turn,
// or another thread. The same calls in the same order give the same order of everything, to the
// bit.
//
// A thread must wait for another one by sleep() and condition() only. Any other wait stops all
// threads.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "starling/transport/local/dispatcher.h"

namespace starling {

class VirtualTime final : public Dispatcher {
 public:
  // Starts at Time{} with thread 0, once threads 0 .. threads-1 have a Life.
  explicit VirtualTime(int threads);
  ~VirtualTime() override;  // when all threads have left

  // The membership of a thread. It must be the first object that the thread makes, because all
  // others need turns until their end. The constructor returns when it is the thread's turn. Once
  // per thread.
  class Life {
   public:
    Life(VirtualTime& time, int thread) : time_(time) { time_.enter(thread); }
    ~Life() { time_.leave(); }
    Life(const Life&) = delete;
    Life& operator=(const Life&) = delete;

   private:
    VirtualTime& time_;
  };
  // Models the thread's own work.
  void sleep(Duration duration);

  // --- Dispatcher: called by the thread that has the turn, or from an event, which must not throw;
  // condition() may be called on any thread ---
  Time now() const override;
  void at(Time when, std::function<void()> work) override;
  bool on_thread() const override;
  void run(std::function<void()> work) override;
  std::unique_ptr<Condition> condition() override;

 private:
  class VirtualCondition;
  struct Thread {
    std::condition_variable turn;
    std::uint64_t woken = 0;  // number of times; an earlier pending wake-up is void
  };
  struct Wake {
    int thread = 0;
    std::uint64_t woken = 0;
  };
  using Lock = std::unique_lock<std::mutex>;

  void enter(int thread);
  void leave();
  void wake_at(Time when, int thread);
  void wait_for_turn(Lock& lock, int thread);
  void pass_turn(Lock& lock);

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::map<std::pair<Time, std::uint64_t>, std::variant<std::function<void()>, Wake>> queue_;
  std::uint64_t sequence_ = 0;
  Time now_{};
  int to_come_;
  int left_;          // threads that have not left
  int running_ = -1;  // the thread that has the turn
  bool in_event_ = false;
};

}  // namespace starling
