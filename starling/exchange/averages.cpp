#include "starling/exchange/averages.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/failpoint.h"

namespace starling {
namespace {

// Renewals are operations after all others.
constexpr std::uint64_t kRenewals = std::uint64_t{1} << 40;

bool is_renewal(AverageId id) { return id.operation > kRenewals; }

// A set of ranks as a bit map, to cross an edge.
std::vector<std::byte> to_bits(const std::set<int>& ranks, int size) {
  std::vector<std::byte> bits((static_cast<std::size_t>(size) + 7) / 8);
  for (const int rank : ranks) bits[static_cast<std::size_t>(rank) / 8] |= std::byte{1} << (rank % 8);
  return bits;
}

// In double, where two floats differ by no infinity. Two equal infinities differ by no number, and
// one infinite value stays what it is: then it is theirs, which a weight adds to mine.
double difference(double theirs, double mine) { return std::isinf(mine) ? theirs : theirs - mine; }

// A share's attempt and step name it as a round and a block name a swap.
SwapId share_id(const Frame& frame) { return {frame.block, frame.step}; }

std::set<int> from_bits(std::span<const std::byte> bits, int size) {
  std::set<int> ranks;
  for (int rank = 0; rank < size; ++rank) {
    if ((bits[static_cast<std::size_t>(rank) / 8] >> (rank % 8) & std::byte{1}) != std::byte{0})
      ranks.insert(rank);
  }
  return ranks;
}

}  // namespace

Averages::Averages(Transport& transport, Monitor& monitor, WorkerLinks& links, const CurrentRound& rounds,
                   AveragesOptions options)
    : transport_(transport),
      monitor_(monitor),
      links_(links),
      rounds_(rounds),
      options_(std::move(options)),
      protocol_(transport.rank(), *this, links.members()),
      senders_(static_cast<std::size_t>(transport.size())) {}

// ---------------------------------------------------------------- the training thread

// Combines each value with those of the others: f(result so far, weight, theirs, mine).
template <class T, class F>
std::set<int> Averages::combined(AverageId id, std::span<T> values, F f) {
  const auto bytes = std::as_writable_bytes(values);
  return run(
      id, {bytes.begin(), bytes.end()},
      [f](const std::vector<std::byte>& mine, std::span<const Average::Share> shares) {
        std::vector<std::byte> result = mine;
        const auto* x = reinterpret_cast<const T*>(mine.data());
        auto* y = reinterpret_cast<T*>(result.data());
        for (const auto& [weight, bytes] : shares) {
          const auto* theirs = reinterpret_cast<const T*>(bytes->data());
          for (std::size_t k = 0; k < mine.size() / sizeof(T); ++k) y[k] = f(y[k], weight, theirs[k], x[k]);
        }
        return result;
      },
      bytes);
}

template <class T>
std::set<int> Averages::mean(std::span<T> values) {
  return combined(next_id(), values, [](T so_far, double weight, T theirs, T mine) {
    return static_cast<T>(so_far + weight * difference(theirs, mine));
  });
}

std::set<int> Averages::average(std::span<float> values) { return mean(values); }
std::set<int> Averages::average_doubles(std::span<double> values) { return mean(values); }

std::set<int> Averages::renew(std::span<std::int64_t> values) {
  return maximum({kRenewals + ++renewals_, 0}, values);
}

std::set<int> Averages::maximum(AverageId id, std::span<std::int64_t> values) {
  return combined(id, values, [](std::int64_t so_far, double, std::int64_t theirs, std::int64_t) {
    return std::max(so_far, theirs);
  });
}

AverageId Averages::next_id() {
  if (nested_ == 0 || !std::exchange(begun_, true)) return last_id_ = {last_id_.operation + 1, 0};
  ++last_id_.part;
  return last_id_;
}

std::set<int> Averages::run(AverageId id, std::vector<std::byte> mine, Average::Combine combine,
                            std::span<std::byte> result) {
  const Timeline::Scope span(options_.timeline.get(), {.name = "average"});
  links_.open_all();
  std::unique_lock lock(monitor_.mutex);
  result_.reset();
  auto values = std::make_shared<const std::vector<std::byte>>(std::move(mine));
  transport_.post([this, values, id, combine = std::move(combine)] {
    bytes_ = values->size();
    began_ = transport_.now();
    running_id_ = id;
    if (is_called_off()) return averaged(values, {});
    for (int rank = 0; rank < transport_.size(); ++rank) {
      if (links_.left(rank) && !links_.is_away(rank)) goes_on_without(rank, "has left before it");
    }
    protocol_.begin(id, values, links_.there(), combine);
  });
  const Time begin = transport_.now();
  auto patience = std::min(options_.silent, options_.stalled);
  while (!monitor_.wait(lock, patience, [&] { return result_.has_value(); })) {
    const auto waited = std::chrono::ceil<std::chrono::milliseconds>(transport_.now() - begin);
    const bool interrupted = monitor_.is_interrupted(lock);
    const bool enough = waited >= options_.stalled || interrupted;
    transport_.post([this, enough, interrupted, waited = seconds(waited)] {
      enough ? give_up(interrupted, waited) : say_awaited(waited);
    });
    patience = enough ? options_.stalled : options_.stalled - waited;
  }
  const auto [bytes, participants, called_off] = *std::exchange(result_, std::nullopt);
  if (called_off) {
    failure_.clear();
    --last_id_.operation;
    begun_ = false;
    throw RenewalCalled();
  }
  if (!failure_.empty()) throw Error(std::exchange(failure_, {}));
  std::ranges::copy(*bytes, result.begin());
  return participants;
}

// ---------------------------------------------------------------- the transport's thread

void Averages::give_up(bool interrupted, double waited) {
  if (interrupted) return protocol_.quit();
  for (const int rank : protocol_.late()) {
    options_.log(Level::warning,
                 fmt::format("worker {} has not come to an average after {:.1f} s: going on without it", rank,
                             waited));
    gone(rank);
  }
}

void Averages::say_awaited(double waited) const {
  const std::set<int> awaited = protocol_.late();
  if (awaited.empty()) return;
  options_.log(Level::warning,
               fmt::format("an average has waited {:.1f} s for {}", waited, name_of_workers(awaited)));
}

// By a renewal, which some worker has called before it has begun this operation.
bool Averages::is_called_off() const {
  const auto [operation, part] = running_id_;
  return part == 0 && operation > called_off_from_ && !is_renewal(running_id_);
}

void Averages::renewal_called(std::uint64_t operations) {
  called_off_from_ = std::min(called_off_from_, operations);
  if (protocol_.running() && is_called_off()) protocol_.quit();
}

void Averages::gone(int rank) {
  was_away(rank);
  protocol_.gone(rank);
}

void Averages::left(int rank) {
  if (protocol_.awaited().contains(rank)) goes_on_without(rank, "has left before it");
  protocol_.gone(rank);
}

// A worker that was away may have many steps to make before it comes.
void Averages::tick() {
  if (transport_.now() - began_ <= options_.silent) return;
  for (const int rank : protocol_.awaited()) {
    if (!away_.contains(rank) || protocol_.has_come(rank)) continue;
    goes_on_without(rank, fmt::format("was away and has not come within {:.1f} s", seconds(options_.silent)));
    gone(rank);
  }
}

void Averages::goes_on_without(int rank, const std::string& why) {
  if (!missed_.insert(rank).second) return;
  options_.log(
      Level::warning,
      fmt::format("an average goes on without worker {}, which {}: every worker must come to an average",
                  rank, why));
}

void Averages::disconnected(int rank) {
  sender(rank).shares.clear();
  protocol_.trouble(rank);
}

std::span<std::byte> Averages::place(int from, const Frame& frame) {
  if (frame.type == FrameType::join) {
    if (frame.length != join_bytes()) return {};
    sender(from).join.resize(frame.length);
    return sender(from).join;
  }
  Inbox& shares = sender(from).shares;
  if (!expects_shares(frame) || frame.total != bytes_ || !shares.may_take(share_id(frame))) return {};
  return shares.place(share_id(frame), frame, [&]() -> Inbox::Room {
    auto share = std::make_shared<std::vector<std::byte>>(frame.total);
    return {share, *share};
  });
}

void Averages::received(int from, const Frame& frame, std::span<const std::byte> chunk, bool intact) {
  switch (frame.type) {
    case FrameType::share:
      return received_share(from, frame, chunk, intact);
    case FrameType::join:
      return received_join(from, frame, intact);
    case FrameType::done:
      return protocol_.done(from, AverageId::of(frame.round), frame.block, frame.value != 0);
    case FrameType::quit:
      links_.end_averaging(from);
      return protocol_.has_quit(from, AverageId::of(frame.round));
    default:
      return;
  }
}

void Averages::received_share(int from, const Frame& frame, std::span<const std::byte> chunk, bool intact) {
  if (!expects_shares(frame)) return;
  if (frame.total != bytes_) {
    monitor_.locked([&] {
      failure_ = fmt::format(
          "worker {} averages {} bytes, and worker {} {}: all must average the same, in the same order",
          transport_.rank(), bytes_, from, frame.total);
    });
    return protocol_.quit();
  }
  Inbox& shares = sender(from).shares;
  switch (shares.received(share_id(frame), frame, chunk, intact || frame.length == 0)) {
    case Inbox::Chunk::partial:
      return;
    case Inbox::Chunk::damaged:
      return protocol_.trouble(from);
    case Inbox::Chunk::last:
      break;
  }
  auto share = std::static_pointer_cast<std::vector<std::byte>>(shares.take(share_id(frame)).room.owner);
  if (!share) share = std::make_shared<std::vector<std::byte>>();  // no values at all
  protocol_.share(from, AverageId::of(frame.round), frame.block, frame.step, std::move(share));
}

void Averages::received_join(int from, const Frame& frame, bool intact) {
  if (frame.length != join_bytes()) return;
  if (!intact) return protocol_.trouble(from);
  const bool renews = is_renewal(AverageId::of(frame.round));
  if (renews || frame.round > protocol_.id().word()) {
    // It has left the steps for an average: rounds that it has not started will not come before I
    // am there too. After a renewal they never come.
    links_.mark_averaging(from, frame.round, frame.value);
    options_.stands_still(from, frame.value + 1);
  }
  protocol_.joined(from, AverageId::of(frame.round), frame.block,
                   from_bits(sender(from).join, transport_.size()));
}

void Averages::send_join(int to, AverageId id, std::uint32_t attempt, const std::set<int>& participants) {
  auto bits = std::make_shared<std::vector<std::byte>>(to_bits(participants, transport_.size()));
  const std::span<const std::byte> bytes(*bits);
  transport_.send(
      to, {.type = FrameType::join, .round = id.word(), .block = attempt, .value = rounds_.next() - 1},
      {std::move(bits), bytes});
}

void Averages::send_share(int to, AverageId id, std::uint32_t attempt, std::uint32_t step, Bytes share) {
  failpoint("average");
  const std::span<const std::byte> bytes(*share);
  transport_.send(to, {.type = FrameType::share, .round = id.word(), .block = attempt, .step = step},
                  {std::move(share), bytes});
}

void Averages::send_done(int to, AverageId id, std::uint32_t attempt, bool ended) {
  transport_.send(to, {.type = FrameType::done, .round = id.word(), .block = attempt, .value = ended});
}

void Averages::send_quit(int to, AverageId id) {
  transport_.send(to, {.type = FrameType::quit, .round = id.word()});
}

void Averages::averaged(Bytes values, const std::set<int>& participants) {
  if (!is_renewal(protocol_.id())) links_.end_averages(protocol_.id().word());
  for (const int rank : participants) away_.erase(rank), missed_.erase(rank);
  for (Sender& sender : senders_) sender.shares.clear();
  const std::lock_guard lock(monitor_.mutex);
  result_ = {std::move(values), participants, participants.empty() && is_called_off()};
  monitor_.changed->notify_all();
}

}  // namespace starling
