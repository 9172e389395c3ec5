// World::partition: a worker that is cut off from too many of the others waits until it sees them.
// Those that were started again, and come as newcomers, do not count meanwhile.
#include <set>

#include <fmt/format.h>

#include "starling/core/clock.h"
#include "starling/core/error.h"
#include "starling/optim/engine.h"
#include "starling/optim/options.h"

namespace starling {

void check_partition(const World& world, const Options& options) {
  if (world.partition == Partition::go_on || world.size == 1) return;
  const SchemeInfo& info = scheme_of(options);
  if (info.path_of(SchemeSettings(options.scheme)) == Path::gradients)
    throw UsageError(fmt::format(
        "STARLING_PARTITION=pause is not for scheme {}: it ends when a worker does not answer", info.name));
}

void Optimizer::Engine::wait_for_majority() const {
  if (world.partition == Partition::go_on || !exchange) return;
  const std::set<int> missing = exchange->unseen();
  if (exchange->sees_majority()) return;
  world.log(Level::warning, fmt::format("this worker sees too few of the others, and pauses: it misses {}",
                                        name_of_workers(missing)));
  const auto gives_up = [this] {
    if (!membership) return false;
    const std::set<int> unseen = exchange->unseen();
    for (const int rank : membership->started_again()) {
      if (unseen.contains(rank)) exchange->has_ended(rank);
    }
    return membership->is_out();
  };
  if (!exchange->wait_for_majority(gives_up))
    throw Error(fmt::format("this worker has paused for {:g} s, and sees too few of the others: it misses {}",
                            seconds(world.timeouts.stalled), name_of_workers(exchange->unseen())));
  if (exchange->sees_majority())
    world.log(Level::warning, "this worker sees enough of the others again, and goes on");
}

}  // namespace starling
