// Edges on which bulk is not sent where both ends are on one host: it is written to memory that the peer maps, and the
// peer's kernel reads it where it lies. No copy, no checksum; only small frames cross a socket.
//
//   mapped.cpp    the Transport: tcp's, and what peers lend each other
//   arena.*       the memory: the maker's end and the reader's
//   hand_over.*   how it gets from one process to the other
//
// Connections, proofs, heartbeats, and who is lost are tcp's (tcp/tcp.h). On each connection each end invites the other to
// hand its memory over; where that succeeds, the edge is mapped in this direction, else payloads go over TCP:
//
//   reader -> maker    invitation   the name of my door and a nonce, for this connection
//   maker  -> reader   handed       a segment lies at your door
//   reader -> maker    mapped       I have mapped it; from now on what lies in it is read there
//   maker  -> reader   lies_at      a frame, and where its payload lies: a lease
//   reader -> maker    the lease is let go: through the tie, which no frame delays
//
// A lease keeps the maker from writing there again. It ends when the reader lets it go, or with the tie: the reader's
// process has ended, or it has lost the connection and holds nothing any more. So while a connection is broken, what the
// reader may still mix stays as it is, and what a dead peer wrote can still be read.
//
// Memory: a maker's buffers are those of the exchange (a few per block), and are used again, never given back. A reader
// that does not let go is lent at most kMostLent payloads of a type and block; more goes over TCP. Of a maker at most
// kMostSegments segments are mapped.
//
// Nothing that a peer says is believed: it hands over memory that cannot shrink, and names places within it. It could
// write to a block while it is read; what must not change between a check and its use is copied first.
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
  std::size_t segment = std::size_t{1} << 30;  // bytes of address space; memory only as it is used
  uid_t user;                                  // whose processes are trusted: this one's
  MappedOptions();
};

// As make_tcp_transport(). Logs, for each edge, how its payloads go.
std::unique_ptr<Transport> make_mapped_transport(const World& world, const std::string& channel);
std::unique_ptr<Transport> make_mapped_transport_with(const MappedOptions& options, const World& world,
                                                      const std::string& channel);

}  // namespace starling
