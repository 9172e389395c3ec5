// Edges between threads of one process, with the same contract as edges between machines. They
// serve tests, and worlds whose workers are threads. Nothing is copied before delivery, and tests
// can inject faults.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "starling/core/clock.h"
#include "starling/transport/local/virtual_time.h"
#include "starling/transport/transport.h"
#include "starling/world/world.h"

namespace starling {

// The time when a link can take more, and the arrival time at the other end.
struct Crossing {
  Time free, there;
};

struct LocalNetwork {
  // If set, its threads use all endpoints, and the hub must outlive them. If not set: Clock, and a
  // thread of the hub's own.
  std::shared_ptr<VirtualTime> time{};
  // Called in the order in which links are given data. If not set, data arrives at once.
  std::function<Crossing(int from, int to, std::size_t bytes, Time now)> cross{};
};

// n endpoints, and the one thread on which all their handlers run, in the order of (time,
// sequence).
//
// Faults take effect on that thread, in the order of the calls. Any thread may call them.
class LocalHub {
 public:
  // timeouts.meet and timeouts.silent decide when an endpoint that does not come (back) is lost.
  explicit LocalHub(int size, Timeouts timeouts = {}, LocalNetwork network = {});

  // The transport of this rank. A rank has one transport at a time. After its stop() a new one may
  // take its place, like a restarted worker.
  std::unique_ptr<Transport> endpoint(int rank);

  // Delays all messages from `from` to `to` by `latency`. Order is kept when the delay falls.
  void delay(int from, int to, Duration latency);
  // Breaks the connection until mend().
  void sever(int a, int b);
  void mend(int a, int b);
  // Like SIGKILL: the endpoint's handler and posted functions never run again, and its peers lose
  // it at once.
  void kill(int rank);
  // Like SIGSTOP: nothing of this endpoint runs until resume(); messages to it wait.
  void pause(int rank);
  void resume(int rank);
  // Flips one bit of the next payload from `from` to `to`.
  void corrupt_next(int from, int to);

 private:
  class Core;
  class Endpoint;
  std::shared_ptr<Core> core_;
};

// For World::make_transport of all workers of one process: one hub per channel. The first worker to
// ask makes it.
std::function<std::unique_ptr<Transport>(const World&, const std::string& channel)> local_transports(
    LocalNetwork network = {});

}  // namespace starling
