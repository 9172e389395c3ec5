// Edges whose payloads a process group carries that is there already: by its send and recv, between two workers.
//
// Connections, proofs, heartbeats, votes, and who is lost are tcp's (tcp/tcp.h); so a process group's edge aborts, breaks and
// comes back as any other. What a group cannot do is confined to the payloads: an operation of it cannot be taken back, and
// does not say when it ends, but for a thread that waits. So a payload goes in pieces, one at a time for each edge and direction:
//
//   sender -> receiver   piece   over TCP: a piece comes by the group, under this tag, so long, with this checksum
//                        ...     by the group, straight from the block; a thread waits for the end at each side
//   both, when connected taken   over TCP: up to which piece I have asked the group for yours
//
// The receiver asks the group for what was announced, for nothing else, and so needs no patience; what has begun is never given
// up, only not delivered, since Gloo would lose its place in the stream of bytes. A piece whose announcement was lost with a
// connection is known by the next `taken` and called back. No tag comes twice, so that what is left over of one meets nobody.
//
// Where the group fails between two workers (of Gloo also: a wait of anybody's that times out closes all connections of that
// process) it is not used between them again: their payloads go over TCP. That costs what was under way.
//
// Any backend for tensors on the CPU will do whose send and recv two workers may use without the others: tried is Gloo.
#pragma once

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
