// Edges whose payloads something else carries than connections of our own: a process group (group_transport.h) or NCCL
// (nccl_transport.h).
//
// Connections, proofs, heartbeats, votes, and who is lost are tcp's (tcp/tcp.h); so such an edge aborts, breaks and comes back
// as any other. What a carrier cannot do is confined to the payloads: what it has begun cannot be taken back without harm, and
// does not say when it ends, but for a thread that waits. So a payload goes in pieces, one at a time for each edge and direction:
//
//   sender -> receiver   piece   over TCP: a piece comes by the carrier, under this tag, so long, with this checksum; and what
//                                else the receiver's carrier must know
//                        ...     by the carrier, straight from the block; a thread waits for the end at each side
//   both, when connected taken   over TCP: up to which piece I have asked the carrier for yours, or that I take no more
//
// The receiver asks the carrier for what was announced, for nothing else, and so needs no patience; what has begun is never given
// up, only not delivered, since Gloo would lose its place in the stream of bytes. A piece whose announcement was lost with a
// connection is known by the next `taken` and called back. No tag comes twice, so that what is left over of one meets nobody.
//
// Where the carrier fails between two workers it is not used between them again: their payloads go over TCP. That costs what
// was under way. One that is whole again with a new connection is given that, and fails after three in a row.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "starling/transport/transport.h"
#include "starling/world/world.h"

namespace starling {

// Methods are called on the transport's thread, where not stated otherwise, must not block, and throw where they fail.
class Carrier {
 public:
  static constexpr std::size_t kPiece = 4 << 20;  // bytes of a piece, at most

  // A piece on its way.
  class Passage {
   public:
    virtual ~Passage() = default;
    // Until it is over; called once, on a thread of its own, which may outlive the transport. Throws where it has failed; returns
    // where it was called back.
    virtual void wait() = 0;
    // wait() is to return.
    virtual void call_back() = 0;
  };

  virtual ~Carrier() = default;
  virtual std::string name() const = 0;  // for people

  // The connection with this peer is no more, and so is what a carrier that renews itself has had with it: what is under way is
  // called back. Any thread.
  virtual void disconnected(int) {}
  // Whether it is whole again, after a failure, with the next connection.
  virtual bool renews() const { return false; }

  // A peer's send() meets the receive() with the same tag and length, and its note, up to 1 KB; they are called in the same order,
  // pieces of one peer and direction. The memory outlives the passage.
  struct Sent {
    std::shared_ptr<Passage> passage;
    std::vector<std::byte> note{};
  };
  virtual Sent send(int peer, int tag, std::span<const std::byte> from) = 0;
  virtual std::shared_ptr<Passage> receive(int peer, int tag, std::span<std::byte> to,
                                           std::span<const std::byte> note) = 0;
};

// Tags of pieces, above those that people choose in a process group. `call` tells the worlds of one group apart.
class Tags {
 public:
  explicit Tags(std::int64_t call) : base_(kFirst + static_cast<int>(call % kWorlds) * kEach) {}
  int next() { return base_ + static_cast<int>(used_++ % kEach); }
  bool has(std::uint64_t tag) const {
    return tag >= static_cast<std::uint64_t>(base_) && tag < static_cast<std::uint64_t>(base_) + kEach;
  }

 private:
  static constexpr int kFirst = 1 << 30, kWorlds = 64, kEach = 1 << 24;
  const int base_;
  std::atomic<std::uint32_t> used_ = 0;
};

// `tags`: one for all transports over the same carrier, of all lives of this worker.
std::unique_ptr<Transport> make_piece_transport(std::shared_ptr<Carrier> carrier, std::shared_ptr<Tags> tags,
                                                const World& world, const std::string& channel);

}  // namespace starling
