#include "starling/transport/condition.h"

#include <condition_variable>

namespace starling {
namespace {

class ClockCondition final : public Condition {
 public:
  void notify_all() override { changed_.notify_all(); }
  bool wait_until(std::unique_lock<std::mutex>& lock, Time deadline,
                  const std::function<bool()>& done) override {
    return changed_.wait_until(lock, deadline, done);
  }

 private:
  std::condition_variable changed_;
};

}  // namespace

std::unique_ptr<Condition> clock_condition() { return std::make_unique<ClockCondition>(); }

}  // namespace starling
