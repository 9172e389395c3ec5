// Payloads by a process group that is there already: by its send and recv, between two workers.
//
// Of Gloo also: a wait of anybody's that times out closes all connections of that process, and its payloads go over TCP from then
// on (pieces.h). Any backend for tensors on the CPU will do whose send and recv two workers may use without the others: tried is
// Gloo.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "starling/transport/transport.h"
#include "starling/world/world.h"

namespace c10d {
class Backend;
}

namespace starling {

// For World::make_transport. The backend's ranks are the world's; it is kept as long as anything of it is under way. `call` is
// a number that all workers have for this world, and that tells the worlds of one group apart.
std::function<std::unique_ptr<Transport>(const World&, const std::string& channel)> group_transports(
    c10d::Backend& backend, std::int64_t call);

}  // namespace starling
