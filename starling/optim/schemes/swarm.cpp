#include "starling/optim/schemes/swarm.h"

#include <utility>

namespace starling {

Swarm::Swarm(std::vector<Block>& blocks, std::unique_ptr<Transport> transport, GossipOptions options, Log log,
             std::shared_ptr<Timeline> timeline, std::function<void()> adapt, int local_steps)
    : Asynchronous(blocks, std::move(transport), std::move(options), std::move(log), std::move(timeline),
                   std::move(adapt)),
      local_steps_(local_steps) {}

void Swarm::step() {
  resume();
  adapt();
  if (++made_ < local_steps_) return;
  made_ = 0;
  give();
}

}  // namespace starling
