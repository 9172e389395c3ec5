// What a training thread waits on for what the transport's thread does. A transport makes it, since it is the transport's clock
// that says when a deadline has passed.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "starling/core/clock.h"

namespace starling {

class Condition {
 public:
  virtual ~Condition() = default;
  // Whoever waits looks again.
  virtual void notify_all() = 0;
  // Waits until done(), which it asks under the lock. False: it is not done at the deadline.
  virtual bool wait_until(std::unique_lock<std::mutex>& lock, Time deadline,
                          const std::function<bool()>& done) = 0;
};

// By Clock.
std::unique_ptr<Condition> clock_condition();

}  // namespace starling
