#include "starling/transport/local/dispatcher.h"

#include <algorithm>
#include <future>

#include "starling/core/with_lock.h"

namespace starling {

ClockDispatcher::~ClockDispatcher() {
  with_lock(mutex_, [this] { stopping_ = true; });
  changed_.notify_all();
  thread_.join();
}

void ClockDispatcher::at(Time when, std::function<void()> work) {
  with_lock(mutex_, [&] { events_.emplace(std::pair(std::max(when, now()), sequence_++), std::move(work)); });
  changed_.notify_one();
}

void ClockDispatcher::run(std::function<void()> work) {
  std::promise<void> ended;
  post([&] {
    work();
    ended.set_value();
  });
  ended.get_future().wait();
}

void ClockDispatcher::loop() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (events_.empty()) {
      changed_.wait(lock);
    } else if (const Time next = events_.begin()->first.first; next > now()) {
      changed_.wait_until(lock, next);
    } else {
      auto event = events_.extract(events_.begin());
      lock.unlock();
      event.mapped()();
      event = {};  // releases its captures outside the lock
      lock.lock();
    }
  }
}

}  // namespace starling
