// What a probe measures with: bytes that go between workers over the transport that training uses.
//
// A flow is a stream of messages to one worker, which acknowledges each. The more has arrived the larger they are and the more
// of them are on their way at once, so that a slow link is not buried and a fast one is filled. Within a host the receiver reads
// a message where it lies, once. What counts, by the receiver's clock, is what comes from a fifth of the duration on to its end.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "starling/core/error.h"
#include "starling/transport/transport.h"
#include "starling/world/world.h"

namespace starling {

// A worker went in the middle of a measurement. Every other one throws it, each naming the first that it has missed.
class WorkerGone : public Error {
 public:
  WorkerGone(int rank, const std::string& message) : Error(message), rank(rank) {}
  const int rank;
};

// Each call waits for other workers for world.timeouts.stalled at most beyond its duration, and then throws Error naming
// them; Error, too, when the user interrupts.
class Flows final : private TransportHandler {
 public:
  // Connects all workers with each other; collective, waits for world.timeouts.meet at most.
  explicit Flows(const World& world);
  ~Flows() override;
  Flows(const Flows&) = delete;
  Flows& operator=(const Flows&) = delete;

  // Seconds that a small message takes to `peer`, which need not call anything: half of a round trip, the median of so many.
  double latency(int peer, int round_trips);
  // Waits until all workers have called it as often, and so have ended what they measured before.
  void meet();
  // Meets, then sends to all of `targets` and receives from all of `sources` at once, for so long. Collective, also for
  // workers that do neither. Returns bytes a second by source.
  std::map<int, double> stream(const std::set<int>& targets, const std::set<int>& sources, Duration duration);

  // Throws WorkerGone where one is gone, or turns out to be within `patience`.
  void check(std::chrono::milliseconds patience = {});

 private:
  static constexpr std::uint64_t kLeastMessage = 64 << 10, kMostMessage = 1 << 20;
  static constexpr std::uint64_t kMostOnTheWay = 16 << 20;  // of one flow

  struct Sending {
    std::uint64_t sent = 0, arrived = 0;  // bytes
    std::uint32_t messages = 0;
    bool over = false;
  };
  // Between two arrivals bytes are taken to come evenly.
  struct Receiving {
    void add(Time now, double more, Time begin, Time from, Time to);
    double bytes = 0;
    Time last{};
    double at_from = -1, at_to = -1;  // bytes by then, once it has passed
    bool over = false;
  };
  struct Pinging {
    int peer = 0;
    int left = 0;
    Time sent{};
    std::vector<double> round_trips{};
  };

  void connected(int peer) override;
  void disconnected(int peer, const std::string& reason) override;
  void lost(int peer, const std::string& reason) override;
  std::span<std::byte> place(int peer, const Frame& frame) override;
  void received(int peer, const Frame& frame, std::span<const std::byte> payload, bool intact) override;
  bool received_in_place(int peer, const Frame& frame, const Payload& payload) override;

  // These with the mutex.
  void arrived(int peer, const Frame& frame, std::uint64_t bytes);
  void send_more(int peer);
  void ping();
  void gone(int peer, const std::string& reason);

  void meet(std::unique_lock<std::mutex>& lock);
  // Until done(), and for so long at most; then Error with what missing() says.
  void wait(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds patience,
            const std::function<bool()>& done, const std::function<std::string()>& missing);

  const World& world_;
  const std::unique_ptr<Transport> transport_;
  const std::unique_ptr<Condition> changed_;
  mutable std::mutex mutex_;  // guards what follows
  std::set<int> connected_;
  std::optional<std::pair<int, std::string>> gone_;  // the first: who, why
  std::uint64_t met_ = 0;                            // how often this worker has come to meet
  std::map<int, std::uint64_t> met_by_;  // how often the others have, of whom one may be further by one
  Time begin_{}, counted_from_{},
      end_{};  // of the latest stream, whose number is met_; never until all have met
  std::map<int, Sending> sending_;
  std::map<int, Receiving> receiving_;           // by source
  std::map<int, std::vector<std::byte>> inbox_;  // by peer: a message
  std::optional<Pinging> pinging_;

  std::shared_ptr<Buffer> message_;
};

}  // namespace starling
