#include "starling/exchange/in_turn.h"

#include <algorithm>

namespace starling {

void InTurn::add(int to, const Frame& frame, Payload payload) {
  const std::size_t bytes = payload.bytes.size();
  waiting_.push_back({to, frame, std::move(payload), bytes});
  send_more();
}

void InTurn::arrived(int to, FrameType type, SwapId id) {
  const std::size_t before = bytes_;
  forget([&](const Message& one) { return one.to == to && one.frame.type == type && one.id() == id; });
  measure(before - bytes_);
  send_more();
}

void InTurn::cancel(SwapId id) {
  const auto is = [&](const Message& one) { return one.id() == id; };
  std::erase_if(waiting_, is);
  forget(is);
  send_more();
}

void InTurn::hurry(SwapId id) {
  for (const Message& one : waiting_) {
    if (one.id() == id) send_(one.to, one.frame, one.payload);
  }
  cancel(id);
}

void InTurn::disconnected(int to) {
  const auto is = [&](const Message& one) { return one.to == to; };
  std::erase_if(waiting_, is);
  round_trips_.erase(to);
  forget(is);
  send_more();
}

void InTurn::round_trip(int to, Duration took) {
  if (took < Duration::zero() || took > kLongest) return;
  Duration& shortest = round_trips_.try_emplace(to, took).first->second;
  shortest = std::min(shortest, took);
}

// Forgets messages in flight.
template <typename Which>
void InTurn::forget(Which which) {
  std::erase_if(under_way_, [&](const Message& one) {
    if (!which(one)) return false;
    bytes_ -= one.bytes;
    bytes_to_[one.to] -= one.bytes;
    return true;
  });
}

// Whenever a window has arrived, the next one follows its measured rate. If late acknowledgements
// and not the line limited the rate, the window doubles. It never does more, because
// acknowledgements of several messages may come at once.
void InTurn::measure(std::size_t arrived) {
  arrived_ += arrived;
  if (arrived_ < window_) return;
  const double took = seconds(now_() - since_);
  Duration longest{};
  for (const auto& [to, round_trip] : round_trips_) longest = std::max(longest, round_trip);
  if (took > 0) {
    const double rate = static_cast<double>(arrived_) / took;
    window_ = std::min(2 * window_, kBytes + static_cast<std::size_t>(2 * rate * seconds(longest)));
  }
  arrived_ = 0;
  since_ = now_();
}

void InTurn::send_more() {
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    if (under_way_.size() >= kAtOnce && bytes_ >= window_) return;
    std::size_t& bytes_to_one = bytes_to_[next->to];
    if (bytes_to_one >= window_ / kAtOnce) {
      ++next;
      continue;
    }
    if (under_way_.empty()) {  // the time before a pause says nothing about the line
      arrived_ = 0;
      since_ = now_();
    }
    send_(next->to, next->frame, next->payload);
    bytes_ += next->bytes;
    bytes_to_one += next->bytes;
    next->payload = {};  // the transport keeps it as long as it needs it
    under_way_.push_back(std::move(*next));
    next = waiting_.erase(next);
  }
}

}  // namespace starling
