// The workers of one run, as one of them sees them: who am I, how many are we, where do we meet.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "starling/core/log.h"
#include "starling/core/timeline.h"
#include "starling/core/wait.h"
#include "starling/world/store.h"

namespace c10d {
class ProcessGroup;
}

namespace starling {

class Collectives;
class Transport;

// One timeout from which the others are derived.
struct Timeouts {
  std::chrono::milliseconds meet{60'000};   // start-up: all workers must have come within this time
  std::chrono::milliseconds silent{5'000};  // no byte from a peer for so long: it is not waited for
  std::chrono::milliseconds stalled{
      600'000};  // alive, but its block does not come: not waited for any longer
};

struct World {
  int rank = 0;
  int size = 1;
  int local_rank = 0;   // among the workers of this node
  int local_size = 1;   // workers on this node
  std::string token;    // what peers must prove; empty: loopback only
  std::string address;  // of this host, as the others reach it: the listener binds to it
  std::shared_ptr<Store> store;
  // Makes one end of the edges to all peers. `channel` tells several optimizers of one worker apart; it must be equal
  // on all workers.
  std::function<std::unique_ptr<Transport>(const World&, const std::string& channel)> make_transport;
  // Makes transport/c10d/collectives.h; empty: c10d's Gloo.
  std::function<std::unique_ptr<Collectives>(const World&, const std::string& channel, int first)>
      make_collectives;
  Timeouts timeouts;
  Log log = [](Level, const std::string&) {
  };  // set it to see what the library has to say: log_to_stderr(rank)
  std::shared_ptr<Timeline> timeline;  // set it to record what this worker does when
  // Asked some times a second by a thread that waits for other workers, so that Ctrl-C ends a wait. While it says yes nobody is
  // waited for: step() and Consensus end without them; the makers below and a constructor throw Error, and so do collectives,
  // on all workers and for good. It may throw in backward(), where all-reduce waits: the caller of backward() gets that.
  Interrupted interrupted = nobody;
  // Optimizers made so far by this worker: the k-th of each worker belong together.
  std::shared_ptr<std::atomic<int>> optimizers = std::make_shared<std::atomic<int>>(0);

  // From what the launcher says in the environment (world/environment.h): torchrun, `starling train --workers N`, srun,
  // mpirun or a PMI launcher; without any a world of one. The token comes from STARLING_TOKEN_FILE or STARLING_TOKEN;
  // STARLING_TRANSPORT=tcp keeps blocks out of shared memory within a host. Joins the launcher's store, or rank 0's;
  // blocks at most timeouts.meet. Throws UsageError for bad or missing variables, Error when the store cannot be hosted
  // or reached.
  static World from_environment(Timeouts timeouts = {}, const Interrupted& interrupted = nobody);
  // The workers of a process group of torch's, such as torch.distributed.init_process_group() makes, with its ranks and its
  // store to meet at; the edges are our own. All its workers call this, the k-th call of each belongs together; a call blocks
  // until all have come, at most timeouts.meet.
  //
  // Who shares a host (kernel and network namespace), and at which address the others reach it, the workers find out by
  // themselves; STARLING_SOCKET_IFNAME names the interface. STARLING_TRANSPORT and the token are as above, but
  // STARLING_TRANSPORT=c10d sends blocks by the group itself (transport/c10d/group_transport.h), and without a token
  // on any worker rank 0 makes a random one and tells it to the others through the store: the store of a group, which tells
  // its members where the others are, is trusted as the group is.
  //
  // What is kept of the group is its store, and with c10d its backend. Throws UsageError where the group has no store, where
  // only some workers have a token, and where an address cannot be known; Error when somebody has not come or the store
  // fails.
  static World from_process_group(c10d::ProcessGroup& group, Timeouts timeouts = {},
                                  const Interrupted& interrupted = nobody);
  // One worker alone.
  static World alone();
  // n workers that are threads of this process, for tests: worlds[r] goes to thread r.
  static std::vector<World> threads(int n);
};

}  // namespace starling
