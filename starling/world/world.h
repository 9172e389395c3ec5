// The workers of one run, as one of them sees them: its rank, their number, and where they meet.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
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

// The conduct of a worker that sees too few of the others: its part of the network is cut off.
//   go_on   it trains on, as the other part does; both mix again when they see each other
//   pause   it waits, before a step and before an average, until it sees more than half of the
//           members, or half of them with the one of the lowest rank. Members whose processes have
//           ended do not count. It throws Error after timeouts.stalled
enum class Partition { go_on, pause };

// `silent` is the one to choose: `stalled` and meet_again() follow it.
struct Timeouts {
  std::chrono::milliseconds meet{60'000};  // start-up: all workers must arrive within this time
  // No byte from a peer for this long: it is not waited for. Equal on all workers, which show life
  // ten times as often. STARLING_SILENT.
  std::chrono::milliseconds silent{5'000};
  // Alive, but its block does not come: not waited for any longer.
  std::chrono::milliseconds stalled{120 * silent};
  // For all members of a later epoch: one that has died meanwhile keeps nobody from training.
  std::chrono::milliseconds meet_again() const { return std::min(meet, 2 * silent); }
};

struct World {
  int rank = 0;
  int size = 1;
  int local_rank = 0;   // among the workers of this node
  int local_size = 1;   // workers on this node
  std::string token;    // the secret that peers must prove, of at least 16 bytes
  std::string address;  // of this host, as the others reach it; the listener binds to it
  std::shared_ptr<Store> store;
  // Ranks are seats: a process that is started again takes its rank's seat while the others train
  // (optim/membership.h). Equal on all workers. STARLING_REJOIN=1, or `starling train --restart`.
  bool rejoin = false;
  // The run begins with the ranks below this number. The others come at any time while these train,
  // as restarted workers do. Equal on all workers; needs `rejoin`. STARLING_INITIAL_SIZE. Nothing:
  // all begin.
  std::optional<int> initial_size{};
  Partition partition = Partition::go_on;  // STARLING_PARTITION
  std::shared_ptr<void> token_file;        // of a token that rank 0 has made: removed with the last copy
  // How a worker has ended, such as "was killed by signal 9", if its launcher has said so in the
  // store; else nothing. On any thread.
  std::function<std::string(int rank)> fate = [](int) { return std::string(); };
  // Makes one end of the edges to all peers. `channel` separates the optimizers of one worker; it
  // must be equal on all workers.
  std::function<std::unique_ptr<Transport>(const World&, const std::string& channel)> make_transport;
  // Makes transport/c10d/collectives.h; empty: c10d's Gloo.
  std::function<std::unique_ptr<Collectives>(const World&, const std::string& channel, int first)>
      make_collectives;
  Timeouts timeouts;
  // Set it to see the library's messages: log_to_stderr(rank).
  Log log = [](Level, const std::string&) {};
  std::shared_ptr<Timeline> timeline;  // set it to record what this worker does when
  // A thread that waits for other workers calls this several times a second, so that Ctrl-C ends a
  // wait. While it returns true, no worker is waited for. step() and Consensus end without them;
  // the makers below and a constructor throw Error. Collectives throw too, on all workers and for
  // good. It may throw in backward(), where all-reduce waits: the exception reaches the caller of
  // backward().
  Interrupted interrupted = nobody;
  // The number of optimizers that this worker has made. The k-th optimizers of all workers belong
  // together.
  std::shared_ptr<std::atomic<int>> optimizers = std::make_shared<std::atomic<int>>(0);

  // The value of a key that this worker sets. Throws Error, naming the worker, after `deadline`,
  // when interrupted, or once the worker is known to have ended; and StoreLost.
  std::string value_of(int rank, const std::string& key, std::chrono::milliseconds deadline) const;

  // A World from the launcher's environment (world/environment.h): torchrun, `starling train
  // --workers N`, srun, mpirun or a PMI launcher; without a launcher, a world of one. The token
  // comes from STARLING_TOKEN_FILE or STARLING_TOKEN. STARLING_TRANSPORT=tcp turns off shared
  // memory within a host, and STARLING_TLS encrypts edges over TCP. Joins the launcher's store, or
  // rank 0's; blocks at most timeouts.meet. Throws UsageError for bad or missing variables, Error
  // if the store cannot be hosted or reached.
  static World from_environment(Timeouts timeouts = {}, const Interrupted& interrupted = nobody);
  // A World of the workers of a torch process group, for example from
  // torch.distributed.init_process_group(), with its ranks and its store. The edges are our own.
  // All its workers call this, and their k-th calls belong together. A call blocks until all have
  // come, at most timeouts.meet.
  //
  // The workers determine which of them share a host (kernel and network namespace), and at which
  // address the others reach it. STARLING_SOCKET_IFNAME names the interface. STARLING_TRANSPORT and
  // the token are as above, with two differences. STARLING_TRANSPORT=c10d sends blocks by the group
  // itself (transport/c10d/group_transport.h). If no worker has a token, rank 0 makes a random one
  // and passes it to the others: on one host by a file of this user, else through the store. The
  // store of a group already tells its members where the others are, so it is trusted like the
  // group.
  //
  // The World keeps the group's store and, with c10d, its backend. Throws UsageError if the group
  // has no store, if only some workers have a token, or if an address cannot be determined. Throws
  // Error if a worker has not come or the store fails.
  static World from_process_group(c10d::ProcessGroup& group, Timeouts timeouts = {},
                                  const Interrupted& interrupted = nobody);
  // One worker alone.
  static World alone();
  // n workers as threads of this process, for tests: worlds[r] goes to thread r.
  static std::vector<World> threads(int n);
};

}  // namespace starling
