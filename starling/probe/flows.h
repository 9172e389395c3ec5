// The probe's instrument: byte streams between workers over the transport that training uses.
//
// A flow is a stream of messages to one worker, which acknowledges each. Messages grow with the
// amount that has arrived, and so does the number in flight. A slow link is therefore not flooded,
// and a fast one is filled. Within a host the receiver reads each message in place, once. The rate
// counts, by the receiver's clock, the bytes from a fifth of the duration on to its end.
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

// A worker was lost in the middle of a measurement. All others throw it. The first one that misses
// the worker tells the others before it ends itself, so all name the same worker.
class WorkerGone : public Error {
 public:
  WorkerGone(int rank, const std::string& message) : Error(message), rank(rank) {}
  const int rank;
};

// Each call waits for other workers for at most world.timeouts.stalled beyond its duration, then
// throws Error and names them. It also throws Error when the user interrupts.
class Flows final : private TransportHandler {
 public:
  // Connects all workers with each other. Collective; waits at most world.timeouts.meet.
  explicit Flows(const World& world);
  ~Flows() override { transport_->stop(); }
  Flows(const Flows&) = delete;
  Flows& operator=(const Flows&) = delete;

  // Seconds of a small message to `peer`: half of a round trip, the median of `round_trips`. The
  // peer need not call anything.
  double latency(int peer, int round_trips);
  // Waits until all workers have called it equally often, and so have ended their earlier
  // measurements.
  void meet();
  // Meets, then sends to all of `targets` and receives from all of `sources` at once, for
  // `duration`. Collective, also for workers that do neither. Returns bytes a second by source.
  std::map<int, double> stream(const std::set<int>& targets, const std::set<int>& sources, Duration duration);

  // Throws WorkerGone if a worker is lost, or turns out to be lost within `patience`.
  void check(std::chrono::milliseconds patience = {});

 private:
  static constexpr std::uint64_t kLeastMessage = 64 << 10, kMostMessage = 1 << 20;
  static constexpr std::uint64_t kMostOnTheWay = 16 << 20;  // bytes of one flow in flight

  struct Sending {
    std::uint64_t sent = 0, arrived = 0;  // bytes
    std::uint32_t messages = 0;
    bool ended = false;
  };
  // Bytes are assumed to come evenly between two arrivals.
  struct Receiving {
    void add(Time now, double more, Time begin, Time from, Time to);
    double bytes = 0;
    Time last{};
    double at_from = -1, at_to = -1;  // bytes by that time, once it has passed
    bool ended = false;
  };
  struct Pinging {
    int peer = 0;
    int left = 0;
    Time sent{};
    std::vector<double> round_trips{};
  };

  void connected(int peer) override;
  void disconnected(int peer, const std::string& reason) override { gone(peer, reason); }
  void lost(int peer, const std::string& reason) override { gone(peer, reason); }
  std::span<std::byte> place(int peer, const Frame& frame) override;
  void received(int peer, const Frame& frame, std::span<const std::byte> payload, bool intact) override;
  bool received_in_place(int peer, const Frame& frame, const Payload& payload) override;

  // Called with the mutex held.
  void arrived(int peer, const Frame& frame, std::uint64_t bytes);
  void send_more(int peer);
  void ping();
  void lose(int peer, const std::string& reason);

  void gone(int peer, const std::string& reason);
  void meet(std::unique_lock<std::mutex>& lock);
  // Waits until done(), for at most `patience`. Then throws Error with the text of missing().
  void wait(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds patience,
            const std::function<bool()>& done, const std::function<std::string()>& missing);

  const World& world_;
  const std::unique_ptr<Transport> transport_;
  const std::unique_ptr<Condition> changed_;
  mutable std::mutex mutex_;  // guards the members below
  std::set<int> connected_;
  // The first lost worker: its rank and the reason.
  std::optional<std::pair<int, std::string>> gone_;
  std::uint64_t met_ = 0;  // number of meet() calls of this worker
  // Number of meet() calls of the others; one of them may be ahead by one.
  std::map<int, std::uint64_t> met_by_;
  Time begin_{}, counted_from_{},
      end_{};  // end of the latest stream, with number met_; never until all have met
  std::map<int, Sending> sending_;
  std::map<int, Receiving> receiving_;           // by source
  std::map<int, std::vector<std::byte>> inbox_;  // by peer: a message
  std::optional<Pinging> pinging_;

  std::shared_ptr<Buffer> message_;
};

}  // namespace starling
