// Collectives between threads in virtual time. If one of them leaves, the others wait for it for
// world.timeouts.stalled.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "starling/core/clock.h"
#include "starling/transport/c10d/collectives.h"
#include "starling/transport/local/virtual_time.h"

namespace starling {

// For World::make_collectives of all of them. takes(workers, bytes) is the duration of an operation
// that returns a Pending. It starts when the last worker has come and the previous operation of the
// same Collectives is over.
std::function<std::unique_ptr<Collectives>(const World&, const std::string& channel, int first)>
virtual_collectives(std::shared_ptr<VirtualTime> time,
                    std::function<Duration(int workers, std::size_t bytes)> takes);

}  // namespace starling
