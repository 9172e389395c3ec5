// One thread that runs functions in the order of (time, sequence): all that happens between the endpoints of a
// LocalHub happens here, one thing at a time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "starling/core/clock.h"

namespace starling {

class Dispatcher {
 public:
  Dispatcher();
  ~Dispatcher();  // drops what has not run; not on its own thread

  Time now() const { return Clock::now(); }
  void post(std::function<void()> work);
  // A time that has passed means now.
  void at(Time when, std::function<void()> work);
  bool on_thread() const { return std::this_thread::get_id() == thread_.get_id(); }

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<Time, std::uint64_t>, std::function<void()>> events_;  // by time, then sequence
  std::uint64_t sequence_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace starling
