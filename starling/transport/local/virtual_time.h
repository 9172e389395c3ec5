// A clock that stands while anything is computed, and jumps to the next event when all wait: so the workers of a cluster can
// be threads of one process, and what comes out does not depend on how fast or busy the machine is.
//
// The threads have turns: one runs at a time, until it sleeps, waits or leaves. Then whatever is next in the order of (time,
// sequence) goes on: an event, on the thread that has just given its turn away, or another thread. The same calls in the same
// order give the same order of everything, to the bit.
//
// A thread that waits for another one in any other way than by sleep() and condition() stops them all.
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
  // It begins at Time{}, when thread 0 .. threads-1 have a Life, with thread 0.
  explicit VirtualTime(int threads);
  ~VirtualTime() override;  // when all threads have left

  // What a thread does while it has one: the first thing that it makes, since all else needs turns to its end. Returns from the
  // constructor when it is its turn. Once for each thread.
  class Life {
   public:
    Life(VirtualTime& time, int thread) : time_(time) { time_.enter(thread); }
    ~Life() { time_.leave(); }
    Life(const Life&) = delete;
    Life& operator=(const Life&) = delete;

   private:
    VirtualTime& time_;
  };
  // What it spends on its own.
  void sleep(Duration duration);

  // --- Dispatcher: by the thread whose turn it is, or from an event, which must not throw; condition() on any thread ---
  Time now() const override;
  void at(Time when, std::function<void()> work) override;
  bool on_thread() const override;
  void run(std::function<void()> work) override;
  std::unique_ptr<Condition> condition() override;

 private:
  class VirtualCondition;
  struct Thread {
    std::condition_variable turn;
    std::uint64_t woken = 0;  // so many times: what was to wake it before is of no use any more
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
  int running_ = -1;  // whose turn it is
  bool in_event_ = false;
};

}  // namespace starling
