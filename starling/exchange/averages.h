// Exact averages over the edges of an exchange: their buffers and frames, and the wait of the
// training thread. The protocol is Average's.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "starling/core/log.h"
#include "starling/core/timeline.h"
#include "starling/exchange/average.h"
#include "starling/exchange/current_round.h"
#include "starling/exchange/inbox.h"
#include "starling/exchange/links.h"
#include "starling/exchange/monitor.h"
#include "starling/transport/transport.h"

namespace starling {

// Thrown in place of an average that some worker does not come to, because it waits in a renewal
// that it has called. Nothing has changed. The average begins again after the renewal.
struct RenewalCalled {};

struct AveragesOptions {
  // For a worker that was away: it may not come. After this time, who is waited for is named.
  std::chrono::milliseconds silent{5'000};
  std::chrono::milliseconds stalled{600'000};  // alive, but it does not come
  Log log{};
  std::shared_ptr<Timeline> timeline{};
  // A worker has left its steps for an average that I have not begun: no round from this one on
  // comes from it before.
  std::function<void(int rank, std::uint64_t from_round)> stands_still{};
};

class Averages final : private AverageActions {
 public:
  // All but the options outlive it.
  Averages(Transport& transport, Monitor& monitor, WorkerLinks& links, const CurrentRound& rounds,
           AveragesOptions options);

  // --- on the training thread ---
  // The averages between these calls, which may be nested, are parts of one operation (average.h).
  void begin_operation() { begun_ = nested_++ > 0 && begun_; }
  void end_operation() { --nested_; }
  // The mean, each value as exact as its type. Equal values stay what they are, infinities too.
  std::set<int> average(std::span<float> values);
  std::set<int> average_doubles(std::span<double> values);
  std::set<int> maximum(std::span<std::int64_t> values) { return maximum(next_id(), values); }
  // The maximum over those that come to a renewal of the membership, outside the order of the
  // others: no ordinary average follows. Those above throw RenewalCalled if they wait for a worker
  // that has called a renewal before it has begun their operation.
  std::set<int> renew(std::span<std::int64_t> values);
  // Operations that this worker has begun, and goes on from.
  std::uint64_t operations() const { return last_id_.operation; }
  void set_operations(std::uint64_t begun) { last_id_ = {begun, 0}; }

  // --- on the transport's thread ---
  // A worker that has begun so many operations has called a renewal.
  void renewal_called(std::uint64_t operations);
  std::uint64_t called_off_from() const { return called_off_from_; }  // the least of those
  std::span<std::byte> place(int from, const Frame& frame);
  void received(int from, const Frame& frame, std::span<const std::byte> chunk, bool intact);
  void disconnected(int rank);
  void connected(int rank) { protocol_.up(rank); }
  void gone(int rank);
  void left(int rank);                             // gone, on its own account
  void was_away(int rank) { away_.insert(rank); }  // silent or lost: it may be far behind
  void i_was_away() { protocol_.was_away(); }
  void i_have_paused() { protocol_.has_paused(); }
  void ended(int rank) { protocol_.has_ended(rank); }  // its process, certainly
  void tick();                                         // often within `silent`
  std::set<int> awaited() const { return protocol_.awaited(); }

 private:
  static constexpr std::size_t kEarly = 8;  // shares

  // From one worker.
  struct Sender {
    Inbox shares{kEarly};         // by attempt and step in place of round and block
    std::vector<std::byte> join;  // the payload of a join, being received
  };
  struct Result {
    Bytes values;
    std::set<int> participants;
    bool called_off = false;  // by a renewal
  };
  template <class T, class F>
  std::set<int> combined(AverageId id, std::span<T> values, F f);
  template <class T>
  std::set<int> mean(std::span<T> values);
  std::set<int> maximum(AverageId id, std::span<std::int64_t> values);
  std::set<int> run(AverageId id, std::vector<std::byte> mine, Average::Combine combine,
                    std::span<std::byte> result);
  bool is_called_off() const;
  void give_up(bool interrupted, double waited);
  void say_awaited(double waited) const;
  AverageId next_id();
  void goes_on_without(int rank, const std::string& why);  // says so once
  void received_share(int from, const Frame& frame, std::span<const std::byte> chunk, bool intact);
  void received_join(int from, const Frame& frame, bool intact);
  bool expects_shares(const Frame& frame) const {
    return protocol_.running() && frame.round == protocol_.id().word();
  }
  std::size_t join_bytes() const { return (senders_.size() + 7) / 8; }
  Sender& sender(int rank) { return senders_[static_cast<std::size_t>(rank)]; }

  void send_join(int to, AverageId id, std::uint32_t attempt, const std::set<int>& participants) override;
  void send_share(int to, AverageId id, std::uint32_t attempt, std::uint32_t step, Bytes share) override;
  void send_done(int to, AverageId id, std::uint32_t attempt, bool ended) override;
  void send_quit(int to, AverageId id) override;
  void averaged(Bytes values, const std::set<int>& participants) override;

  Transport& transport_;
  Monitor& monitor_;
  WorkerLinks& links_;
  const CurrentRound& rounds_;
  const AveragesOptions options_;
  Average protocol_;
  std::vector<Sender> senders_;                        // by rank; my own is unused
  std::size_t bytes_ = 0;                              // of the running average
  Time began_{};                                       // it
  AverageId running_id_{};                             // of it
  std::uint64_t called_off_from_ = ~std::uint64_t{0};  // operations after this one, by a renewal
  std::set<int> away_;                                 // were, and have not taken part since
  std::set<int> missed_;                               // an average has said that it goes on without them

  // On the training thread.
  AverageId last_id_{};
  std::uint64_t renewals_ = 0;
  int nested_ = 0;      // operations
  bool begun_ = false;  // an average of this operation

  // With the monitor's lock.
  std::optional<Result> result_;
  std::string failure_;  // why, if there is no average
};

}  // namespace starling
