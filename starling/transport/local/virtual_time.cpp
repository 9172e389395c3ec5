#include "starling/transport/local/virtual_time.h"

#include <algorithm>

namespace starling {

// Only the thread that has the turn touches its waiting threads.
class VirtualTime::VirtualCondition final : public Condition {
 public:
  explicit VirtualCondition(VirtualTime& time) : time_(time) {}

  void notify_all() override {
    const Lock lock(time_.mutex_);
    for (const int thread : waiting_) time_.wake_at(time_.now_, thread);
    waiting_.clear();
  }

  bool wait_until(Lock& user, Time deadline, const std::function<bool()>& done) override {
    while (!done()) {
      Lock lock(time_.mutex_);
      if (time_.now_ >= deadline) return false;
      const int me = time_.running_;
      waiting_.insert(me);
      user.unlock();
      time_.wake_at(deadline, me);
      time_.pass_turn(lock);
      time_.wait_for_turn(lock, me);
      waiting_.erase(me);
      lock.unlock();
      user.lock();
    }
    return true;
  }

 private:
  VirtualTime& time_;
  std::set<int> waiting_;
};

VirtualTime::VirtualTime(int threads) : to_come_(threads), left_(threads) {
  for (int k = 0; k < threads; ++k) threads_.push_back(std::make_unique<Thread>());
}

VirtualTime::~VirtualTime() = default;

// ---------------------------------------------------------------- threads

void VirtualTime::enter(int thread) {
  Lock lock(mutex_);
  if (--to_come_ == 0) {
    for (int k = 0; k < static_cast<int>(threads_.size()); ++k) wake_at(now_, k);
    pass_turn(lock);
  }
  wait_for_turn(lock, thread);
}

void VirtualTime::leave() {
  Lock lock(mutex_);
  running_ = -1;
  if (--left_ > 0) pass_turn(lock);
}

void VirtualTime::sleep(Duration duration) {
  Lock lock(mutex_);
  const int me = running_;
  wake_at(now_ + duration, me);
  pass_turn(lock);
  wait_for_turn(lock, me);
}

// If several wake a thread, the first one does.
void VirtualTime::wake_at(Time when, int thread) {
  queue_[{std::max(when, now_), sequence_++}] =
      Wake{thread, threads_[static_cast<std::size_t>(thread)]->woken};
}

void VirtualTime::wait_for_turn(Lock& lock, int thread) {
  threads_[static_cast<std::size_t>(thread)]->turn.wait(lock, [&] { return running_ == thread; });
}

// Runs events until it is a thread's turn. There is always a next event, because every wait has a
// deadline.
void VirtualTime::pass_turn(Lock& lock) {
  running_ = -1;
  while (running_ < 0) {
    auto next = queue_.extract(queue_.begin());
    now_ = next.key().first;
    if (const auto* const wake = std::get_if<Wake>(&next.mapped())) {
      Thread& thread = *threads_[static_cast<std::size_t>(wake->thread)];
      if (wake->woken != thread.woken) continue;
      ++thread.woken;
      running_ = wake->thread;
      thread.turn.notify_one();
    } else {
      in_event_ = true;
      lock.unlock();
      [&]() noexcept { std::get<std::function<void()>>(next.mapped())(); }();
      next = {};  // releases its captures outside the lock
      lock.lock();
      in_event_ = false;
    }
  }
}

// ---------------------------------------------------------------- Dispatcher

Time VirtualTime::now() const {
  const Lock lock(mutex_);
  return now_;
}

void VirtualTime::at(Time when, std::function<void()> work) {
  const Lock lock(mutex_);
  queue_[{std::max(when, now_), sequence_++}] = std::move(work);
}

bool VirtualTime::on_thread() const {
  const Lock lock(mutex_);
  return in_event_;
}

void VirtualTime::run(std::function<void()> work) {
  post(std::move(work));
  sleep({});
}

std::unique_ptr<Condition> VirtualTime::condition() { return std::make_unique<VirtualCondition>(*this); }

}  // namespace starling
