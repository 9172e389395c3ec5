// The condition on which a training thread waits for the transport's thread. A transport makes it,
// because the transport's clock decides when a deadline has passed.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "starling/core/clock.h"

namespace starling {

class Condition {
 public:
  virtual ~Condition() = default;
  // Every waiting thread checks again.
  virtual void notify_all() = 0;
  // Waits until done(), which it calls under the lock. False: not done at the deadline.
  virtual bool wait_until(std::unique_lock<std::mutex>& lock, Time deadline,
                          const std::function<bool()>& done) = 0;
};

// A Condition by Clock.
std::unique_ptr<Condition> clock_condition();

}  // namespace starling
