// Edges that use shared memory for bulk when both ends are on one host. A worker writes a block to
// memory that the peer maps, and the peer reads it in place. There is no copy and no checksum; only
// small frames cross a socket.
//
//   mapped.cpp    the Transport: tcp's, and the leases between peers
//   arena.*       the memory: the maker's end and the reader's
//   hand_over.*   brings the memory from one process to the other
//
// Connections, proofs, heartbeats and the detection of lost peers are tcp's (tcp/tcp.h). On each
// connection each end invites the other to hand its memory over. If that succeeds, the edge is
// mapped in this direction; otherwise payloads go over TCP:
//
//   reader -> maker    invitation   the name of my door and a nonce, for this connection
//   maker  -> reader   handed       a region waits at your door
//   reader -> maker    mapped       I have mapped it; from now on I read its payloads there
//   maker  -> reader   lies_at      a frame, and the place of its payload: a lease
//   reader -> maker    the lease is released: through the tie, which no frame delays
//
// A lease keeps the maker from writing there again. It ends when the reader releases it. It also
// ends with the tie: the reader's process has ended, or it has lost the connection and holds
// nothing any more. While a connection is broken, the data that the reader may still mix therefore
// stays unchanged, and a dead peer's data can still be read.
//
// Memory: a maker's buffers are those of the exchange (a few per block). They are reused, never
// freed. A reader that releases nothing is lent at most kMostLent payloads of a type and block;
// further payloads go over TCP. A reader maps at most kMostRegions regions of a maker.
//
// The reader trusts no message of a peer. The peer hands over memory that cannot shrink, and gives
// places within it. The peer could write to a block while it is read, so data that must not change
// between a check and its use is copied first.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include <sys/types.h>

#include "starling/transport/tcp/tcp.h"
#include "starling/transport/transport.h"
#include "starling/world/world.h"

namespace starling {

struct MappedOptions {
  TcpOptions tcp{};
  std::size_t region = std::size_t{1} << 30;  // bytes of address space; memory only as it is used
  uid_t user;                                 // only processes of this user are trusted
  MappedOptions();
};

// Like make_tcp_transport(). Logs, for each edge, the way of its payloads.
std::unique_ptr<Transport> make_mapped_transport(const World& world, const std::string& channel);
std::unique_ptr<Transport> make_mapped_transport_with(const MappedOptions& options, const World& world,
                                                      const std::string& channel);

}  // namespace starling
