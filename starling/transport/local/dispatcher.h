// Runs functions one at a time, in the order of (time, sequence). Everything between the endpoints
// of a LocalHub happens here.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "starling/core/clock.h"
#include "starling/transport/condition.h"

namespace starling {

class Dispatcher {
 public:
  virtual ~Dispatcher() = default;  // drops what has not run

  virtual Time now() const = 0;
  // A time in the past means now.
  virtual void at(Time when, std::function<void()> work) = 0;
  void post(std::function<void()> work) { at(now(), std::move(work)); }
  // Whether the caller is the function that runs now.
  virtual bool on_thread() const = 0;
  // Like post(), and returns when `work` has run. Not to be called from a running function.
  virtual void run(std::function<void()> work) = 0;
  virtual std::unique_ptr<Condition> condition() = 0;
};

// A Dispatcher by Clock, on a thread of its own.
class ClockDispatcher final : public Dispatcher {
 public:
  ClockDispatcher() : thread_([this] { loop(); }) {}
  ~ClockDispatcher() override;  // not on its own thread

  Time now() const override { return Clock::now(); }
  void at(Time when, std::function<void()> work) override;
  bool on_thread() const override { return std::this_thread::get_id() == thread_.get_id(); }
  void run(std::function<void()> work) override;
  std::unique_ptr<Condition> condition() override { return clock_condition(); }

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  // By time, then sequence.
  std::map<std::pair<Time, std::uint64_t>, std::function<void()>> events_;
  std::uint64_t sequence_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace starling
