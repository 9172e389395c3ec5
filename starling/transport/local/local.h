// Edges between threads of one process, with the same contract as those between machines: for tests, and for worlds
// whose workers are threads. Nothing is copied before it is delivered, and faults are made to order.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "starling/core/clock.h"
#include "starling/transport/local/virtual_time.h"
#include "starling/transport/transport.h"
#include "starling/world/world.h"

namespace starling {

// When a link that is given something can be given more, and when that is at the other end.
struct Crossing {
  Time free, there;
};

struct LocalNetwork {
  // Then all endpoints are used by its threads, and the hub goes after they have left. Without: Clock, and a thread of the
  // hub's own.
  std::shared_ptr<VirtualTime> time{};
  // Asked in the order in which links are given something. Without: at once.
  std::function<Crossing(int from, int to, std::size_t bytes, Time now)> cross{};
};

// n endpoints and the one thread on which all their handlers run, in the order of (time, sequence).
//
// The faults take effect on that thread, in the order in which they were asked for, and may be called from any thread.
class LocalHub {
 public:
  // timeouts.meet and timeouts.silent say when an endpoint that does not come (back) is lost.
  explicit LocalHub(int size, Timeouts timeouts = {}, LocalNetwork network = {});

  // The transport of this rank. While one lives there is no other; after its stop() a new one may take its place, as
  // a worker that was started again.
  std::unique_ptr<Transport> endpoint(int rank);

  // What `from` sends to `to` arrives so much later. Order is kept when the delay falls.
  void delay(int from, int to, Duration latency);
  // The connection breaks and stays broken until mend().
  void sever(int a, int b);
  void mend(int a, int b);
  // As SIGKILL: no handler call nor posted function of this endpoint any more; its peers lose it at once.
  void kill(int rank);
  // As SIGSTOP: nothing of this endpoint runs until resume(), what others send to it waits.
  void pause(int rank);
  void resume(int rank);
  // One bit of the next payload from `from` to `to` is flipped on the way.
  void corrupt_next(int from, int to);

 private:
  class Core;
  class Endpoint;
  std::shared_ptr<Core> core_;
};

// For World::make_transport of all the workers of one process: one hub per channel, made when the first of them asks.
std::function<std::unique_ptr<Transport>(const World&, const std::string& channel)> local_transports(
    LocalNetwork network = {});

}  // namespace starling
