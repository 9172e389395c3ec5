#include "starling/probe/flows.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starling/core/wait.h"

namespace starling {

void Flows::Receiving::add(Time now, double more, Time begin, Time from, Time to) {
  const Time since = std::max(last, begin);
  const auto by = [&](Time mark) { return bytes + more * seconds(mark - since) / seconds(now - since); };
  if (since < from && from <= now) at_from = by(from);
  if (since < to && to <= now) at_to = by(to);
  bytes += more;
  last = now;
}

Flows::Flows(const World& world)
    : world_(world),
      transport_(world.make_transport(world, "probe")),
      changed_(transport_->condition()),
      message_(transport_->buffer(kMostMessage)) {
  std::memset(message_->data(), 1, kMostMessage);
  transport_->start(*this);
  std::set<int> others;
  for (int peer = 0; peer < world.size; ++peer) {
    if (peer == world.rank) continue;
    others.insert(peer);
    transport_->open(peer);
  }
  std::unique_lock lock(mutex_);
  wait(
      lock, world.timeouts.meet, [&] { return connected_ == others; },
      [&] {
        std::vector<int> missing;
        std::set_difference(others.begin(), others.end(), connected_.begin(), connected_.end(),
                            std::back_inserter(missing));
        return fmt::format("no connection with worker {}", fmt::join(missing, ", "));
      });
}

void Flows::wait(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds patience,
                 const std::function<bool()>& done, const std::function<std::string()>& missing) {
  const auto now = [this] { return transport_->now(); };
  const bool ended = starling::wait(*changed_, lock, now, patience, world_.interrupted,
                                    [&] { return gone_.has_value() || done(); });
  if (gone_) throw WorkerGone(gone_->first, gone_->second);
  if (ended) return;
  if (ask(world_.interrupted, lock))
    throw Error(fmt::format("probe: worker {} was interrupted", world_.rank));
  throw Error(fmt::format("probe: worker {}: {} within {:.1f} s", world_.rank, missing(), seconds(patience)));
}

double Flows::latency(int peer, int round_trips) {
  std::unique_lock lock(mutex_);
  pinging_ = {.peer = peer, .left = round_trips};
  ping();
  wait(
      lock, world_.timeouts.stalled, [&] { return pinging_->left == 0; },
      [&] { return fmt::format("no answer from worker {}", peer); });
  auto& all = pinging_->round_trips;
  std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2), all.end());
  return all[all.size() / 2] / 2;
}

void Flows::ping() {
  pinging_->sent = transport_->now();
  transport_->send(pinging_->peer, {.type = FrameType::ask});
}

std::map<int, double> Flows::stream(const std::set<int>& targets, const std::set<int>& sources,
                                    Duration duration) {
  std::unique_lock lock(mutex_);
  sending_.clear();
  receiving_.clear();
  begin_ = counted_from_ = end_ = Time::max();
  meet(lock);
  begin_ = transport_->now();
  end_ = begin_ + duration;
  counted_from_ = begin_ + duration / 5;
  for (const int target : targets) {
    sending_[target];
    send_more(target);
  }
  std::vector<int> missing;
  wait(
      lock, std::chrono::ceil<std::chrono::milliseconds>(duration) + world_.timeouts.stalled,
      [&] {
        missing.clear();
        for (const auto& [target, flow] : sending_) {
          if (!flow.ended) missing.push_back(target);
        }
        for (const int source : sources) {
          if (!receiving_[source].ended) missing.push_back(source);
        }
        return missing.empty();
      },
      [&] { return fmt::format("a flow from or to worker {} did not end", fmt::join(missing, ", ")); });
  std::map<int, double> rates;
  for (const int source : sources) {
    const Receiving& flow = receiving_[source];
    const double to = flow.at_to < 0 ? flow.bytes : flow.at_to;
    rates[source] = flow.at_from >= 0 && to > flow.at_from
                        ? (to - flow.at_from) / seconds(end_ - counted_from_)
                        : flow.bytes / std::max(seconds(flow.last - begin_), 1e-9);
  }
  return rates;
}

void Flows::meet() {
  std::unique_lock lock(mutex_);
  meet(lock);
}

void Flows::meet(std::unique_lock<std::mutex>& lock) {
  ++met_;
  for (const int peer : connected_) transport_->send(peer, {.type = FrameType::join, .round = met_});
  std::vector<int> missing;
  wait(
      lock, world_.timeouts.stalled,
      [&] {
        missing.clear();
        for (const int peer : connected_) {
          if (met_by_[peer] < met_) missing.push_back(peer);
        }
        return missing.empty();
      },
      [&] { return fmt::format("worker {} did not come", fmt::join(missing, ", ")); });
}

void Flows::check(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  const auto now = [this] { return transport_->now(); };
  starling::wait(*changed_, lock, now, patience, world_.interrupted, [&] { return gone_.has_value(); });
  if (gone_) throw WorkerGone(gone_->first, gone_->second);
}

// Sends at least one message.
void Flows::send_more(int peer) {
  Sending& flow = sending_[peer];
  const bool in_time = transport_->now() < end_;
  const std::uint64_t size = std::clamp(flow.arrived / 64, kLeastMessage, kMostMessage);
  const std::uint64_t on_the_way = std::min(2 * kLeastMessage + flow.arrived / 4, kMostOnTheWay);
  while (flow.sent == 0 || (in_time && flow.sent - flow.arrived + size <= on_the_way)) {
    transport_->send(peer, {.type = FrameType::data, .round = met_, .block = flow.messages++ % 64},
                     payload_of(message_, 0, size));
    flow.sent += size;
  }
  if (in_time || flow.arrived < flow.sent) return;
  flow.ended = true;
  transport_->send(peer, {.type = FrameType::done, .round = met_});
  changed_->notify_all();
}

void Flows::arrived(int peer, const Frame& frame, std::uint64_t bytes) {
  receiving_[peer].add(transport_->now(), static_cast<double>(bytes), begin_, counted_from_, end_);
  if (frame.offset + bytes == frame.total)
    transport_->send(
        peer, {.type = FrameType::ack, .round = frame.round, .block = frame.block, .value = frame.total});
}

// ---------------------------------------------------------------- on the transport's thread

void Flows::connected(int peer) {
  const std::lock_guard lock(mutex_);
  connected_.insert(peer);
  changed_->notify_all();
}

void Flows::gone(int peer, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  lose(peer, reason);
}

void Flows::lose(int peer, const std::string& reason) {
  if (gone_) return;
  gone_ = {peer, fmt::format("probe: worker {} was lost during it: {}", peer, reason)};
  for (const int other : connected_) {
    if (other != peer)
      transport_->send(other, {.type = FrameType::quit, .value = static_cast<std::uint64_t>(peer)});
  }
  changed_->notify_all();
}

std::span<std::byte> Flows::place(int peer, const Frame& frame) {
  const std::lock_guard lock(mutex_);
  if (frame.type != FrameType::data || frame.round != met_ || frame.total > kMostMessage ||
      frame.offset > frame.total || frame.length > frame.total - frame.offset)
    return {};
  auto& inbox = inbox_[peer];
  inbox.resize(kMostMessage);
  return std::span(inbox).subspan(frame.offset, frame.length);
}

bool Flows::received_in_place(int peer, const Frame& frame, const Payload& payload) {
  const std::lock_guard lock(mutex_);
  if (frame.type != FrameType::data || frame.round != met_ || payload.bytes.size() > kMostMessage)
    return false;
  auto& inbox = inbox_[peer];
  inbox.resize(kMostMessage);
  // This copy is the cost of a receiver.
  std::ranges::copy(payload.bytes, inbox.begin());
  Frame whole = frame;
  whole.offset = 0;
  whole.total = payload.bytes.size();
  arrived(peer, whole, whole.total);
  return true;
}

void Flows::received(int peer, const Frame& frame, std::span<const std::byte> payload, bool intact) {
  const std::lock_guard lock(mutex_);
  switch (frame.type) {
    case FrameType::data:
      if (intact && !payload.empty()) arrived(peer, frame, payload.size());
      return;
    case FrameType::ack:
      if (frame.round != met_ || !sending_.contains(peer)) return;
      sending_[peer].arrived += frame.value;
      return send_more(peer);
    case FrameType::done:
      if (frame.round == met_) receiving_[peer].ended = true;
      changed_->notify_all();
      return;
    case FrameType::join:
      met_by_[peer] = frame.round;
      changed_->notify_all();
      return;
    case FrameType::quit:
      if (connected_.contains(static_cast<int>(frame.value)))
        lose(static_cast<int>(frame.value), fmt::format("worker {} has lost it", peer));
      return;
    case FrameType::ask:
      return transport_->send(peer, {.type = FrameType::answer});
    case FrameType::answer:
      if (!pinging_ || pinging_->peer != peer || pinging_->left == 0) return;
      pinging_->round_trips.push_back(seconds(transport_->now() - pinging_->sent));
      if (--pinging_->left > 0) return ping();
      changed_->notify_all();
      return;
    default:
      return;
  }
}

}  // namespace starling
