// Edges whose payloads go by a process group that exists already: by its send and recv, between two
// workers.
//
// Connections, proofs, heartbeats, votes and the loss of a worker are tcp's (tcp/tcp.h). So such an
// edge aborts, breaks and comes back like any other. A group cannot take back what it has begun,
// and only a thread that waits learns when an operation ends. Both limits are confined to the
// payloads: each goes in pieces, one at a time per edge and direction.
//
//   sender -> receiver   piece   over TCP: tag, length and checksum of the next piece
//                        ...     by the group, straight from the block; on each side a thread waits
//   both, when connected taken   over TCP: how many of your pieces I have asked the group for, or
//                                that I take no more
//
// The receiver asks the group only for pieces that were announced, and so needs no timeout. It
// never gives up a piece that has begun, since Gloo would lose its place in the stream of bytes; it
// only does not deliver it. If a connection loses an announcement, the next `taken` tells so, and
// the sender calls the piece back. No tag is used twice, so no leftover of one piece meets another.
//
// If the group fails between two workers, their payloads go over TCP from then on. The failure
// costs what was in flight.
//
// With Gloo, a timeout in any wait of the user's program closes all connections of that process,
// which is such a failure. Every backend for tensors on the CPU will do, if two workers may use its
// send and recv without the others. Gloo is tested.
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

// For World::make_transport. The backend's ranks are the world's; it is kept while anything of it
// is in flight. `call` must be equal on all workers of this world, and different for each world of
// one group.
std::function<std::unique_ptr<Transport>(const World&, const std::string& channel)> group_transports(
    c10d::Backend& backend, std::int64_t call);

}  // namespace starling
