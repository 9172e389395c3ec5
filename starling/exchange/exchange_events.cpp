// The exchange on the transport's thread: the transport's events go to the protocols.
#include <algorithm>

#include <fmt/format.h>

#include "starling/exchange/exchange.h"

namespace starling {
namespace {

// Its `round` is one of the schedule's, and the sender has come to it.
bool is_of_a_round(FrameType type) {
  switch (type) {
    case FrameType::data:
    case FrameType::ready:
    case FrameType::ack:
    case FrameType::abort:
    case FrameType::skip:
    case FrameType::query:
    case FrameType::outcome:
    case FrameType::jumps:
    case FrameType::part:
    case FrameType::mean:
    case FrameType::group_ready:
    case FrameType::group_got:
    case FrameType::group_ack:
    case FrameType::group_abort:
    case FrameType::group_query:
    case FrameType::group_outcome:
      return true;
    default:
      return false;
  }
}

// The farthest round that the frame claims for its sender; 0 if it claims none.
std::uint64_t claimed_round(const Frame& frame) {
  switch (frame.type) {
    case FrameType::abort:
    case FrameType::group_abort:
      return std::max(frame.round, frame.value);
    case FrameType::resume:
    case FrameType::join:
      return frame.value;
    default:
      return is_of_a_round(frame.type) ? frame.round : 0;
  }
}

}  // namespace

void Exchange::connected(int rank) {
  links_.heard(rank);
  edges_.edge(rank).connected();
  groups_.protocol().connected(rank);
  links_.connected(rank);
  links_.say_alive(rank);
  if (renewal_called_) links_.control(rank, FrameType::renew, averages_.called_off_from());
  averages_.connected(rank);
}

void Exchange::disconnected(int rank, const std::string& reason) {
  edges_.disconnected(rank);
  groups_.disconnected(rank);
  links_.disconnected(rank, reason);
  averages_.disconnected(rank);
  // A neighbour that broke off while I slept says where it is once it is connected again.
  const bool unknown = links_.slept_lately() && !links_.left(rank) && links_.is_neighbour(rank);
  unknown ? rounds_.went_on(rank) : rounds_.has_said(rank);
}

void Exchange::lost(int rank, const std::string& reason) {
  averages_.gone(rank);
  groups_.protocol().gone(rank);
  guard_.lost(rank);
  rounds_.has_said(rank);
  if (!links_.left(rank)) links_.lost(rank, reason);
}

void Exchange::ended(int rank) {
  links_.ended(rank);
  averages_.ended(rank);
}

std::span<std::byte> Exchange::place(int from, const Frame& frame) {
  switch (frame.type) {
    case FrameType::data:
      return edges_.place(from, frame);
    case FrameType::part:
    case FrameType::mean:
      return groups_.place(from, frame);
    case FrameType::share:
    case FrameType::join:
      return averages_.place(from, frame);
    default:
      return {};
  }
}

bool Exchange::received_in_place(int from, const Frame& frame, const Payload& payload) {
  if (!rounds_.expects(from, frame.round)) return false;
  if (frame.type == FrameType::part) return groups_.received_in_place(from, frame, payload);
  return frame.type == FrameType::data && edges_.received_in_place(from, frame, payload);
}

void Exchange::received(int from, const Frame& frame, std::span<const std::byte> payload, bool intact) {
  links_.heard(from);
  if (const std::uint64_t round = claimed_round(frame); !rounds_.possible(round))
    return links_.refuse(from, fmt::format("round {}", round));
  if (is_of_a_round(frame.type) && !rounds_.expects(from, frame.round)) return;
  switch (frame.type) {
    case FrameType::data:
      return edges_.received_chunk(from, frame, payload, intact);
    case FrameType::share:
    case FrameType::join:
    case FrameType::done:
    case FrameType::quit:
      return averages_.received(from, frame, payload, intact);
    case FrameType::renew:
      return received_renew(frame.value);
    case FrameType::jumps:
      return guard_.was_refused(from, {frame.round, frame.block}, jump_distance(frame), frame.step != 0);
    case FrameType::resume:
      rounds_.is_at(from, frame.value);
      return rounds_.has_said(from);
    case FrameType::where:
      if (links_.absent(from)) return links_.mark_present(from);
      return links_.control(from, FrameType::resume);  // I wait for it anyway: no need to jump
    case FrameType::heartbeat:
      if (frame.step != 0) pauses(from);
      return links_.control(from, FrameType::echo, frame.value);
    case FrameType::echo:
      return received_echo(from, frame);
    case FrameType::leave:
      links_.mark_left(from, frame.value != 0);
      give_up_on(from, 0);
      rounds_.has_said(from);
      return averages_.left(from);
    case FrameType::part:
    case FrameType::mean:
    case FrameType::group_ack:
    case FrameType::group_abort:
    case FrameType::group_query:
    case FrameType::group_outcome:
    case FrameType::group_ready:
    case FrameType::group_got:
      return groups_.received(from, frame, payload, intact);
    case FrameType::ready:
      links_.mark_present(from);
      return received_word(from, frame);
    case FrameType::ack:
    case FrameType::abort:
    case FrameType::skip:
    case FrameType::query:
    case FrameType::outcome:
      return received_word(from, frame);
    // The peer's transport is of another kind than mine, or its optimizer.
    case FrameType::invitation:
    case FrameType::handed:
    case FrameType::mapped:
    case FrameType::lies_at:
    case FrameType::piece:
    case FrameType::taken:
    case FrameType::ask:
    case FrameType::answer:
      return;
  }
}

void Exchange::received_echo(int from, const Frame& frame) {
  if (!links_.is_neighbour(from)) return;
  // A peer that lies may have sent anything.
  const auto now = static_cast<std::uint64_t>(transport_->now().time_since_epoch().count());
  groups_.round_trip(from, Duration(static_cast<std::int64_t>(now - frame.value)));
}

// A word of an edge's protocol.
void Exchange::received_word(int from, const Frame& frame) {
  const FrameType type = frame.type;
  if (frame.block >= layout_.blocks()) return;
  if (type == FrameType::ack || type == FrameType::abort) links_.has_voted(from);
  if (type == FrameType::abort) rounds_.is_at(from, frame.value);
  if (type == FrameType::skip) {
    rounds_.is_at(from, frame.round);
    groups_.protocol().skipped(from, frame.round);
  }
  const bool past = edges_.edge(from).past({frame.round, frame.block});
  if (type == FrameType::abort && frame.value != 0 && !past) rounds_.went_on(from);
  edges_.received_word(from, frame);
}

// Heartbeats, and the search for peers that have fallen silent.
void Exchange::tick() {
  const Time now = transport_->now();
  const std::set<int> awaited = averages_.awaited();
  if (links_.was_away()) averages_.i_was_away();
  links_.tick([&](int rank, const std::string& why) {
    averages_.was_away(rank);
    if (waits_for(rank) || awaited.contains(rank)) is_silent(rank, why);
  });
  averages_.tick();
  transport_->at(now + patience_.silent / 10, [this] { tick(); });
}

// All hear of it from all, before these quit an average for it.
void Exchange::received_renew(std::uint64_t operations) {
  if (!renewable_) return;
  if (!renewal_called_.exchange(true)) {
    for (int rank = 0; rank < transport_->size(); ++rank) {
      if (rank != transport_->rank() && !links_.is_away(rank))
        links_.control(rank, FrameType::renew, operations);
    }
  }
  averages_.renewal_called(operations);
}

// An average goes on without it anyway: some who take part do not see it, or it would not pause.
void Exchange::pauses(int rank) {
  links_.mark_absent(rank, "it pauses");
  give_up_on(rank, 0);
}

void Exchange::is_silent(int rank, const std::string& why) {
  links_.mark_absent(rank, why);
  averages_.gone(rank);
  give_up_on(rank, 0);
  if (waits_for(rank)) transport_->reset(rank, why);  // I have voted: it breaks, and I am in doubt
}

}  // namespace starling
