// The one receiver of payloads that come in chunks: blocks, parts, means, shares of an average.
//
//   chunk   a frame with its offset and length in the payload. The chunks of a payload come in
//           order, whole and checked, or the payload is damaged and none of it is kept
//   early   a payload for a swap that this worker has not begun. An inbox begins a bounded number
//           of payloads
//
// An inbox belongs to one sender and one kind of payload. Not for two threads at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "starling/exchange/edge.h"
#include "starling/exchange/sent_block.h"
#include "starling/kernels/format.h"
#include "starling/transport/buffer.h"
#include "starling/transport/frame.h"

namespace starling {

class Inbox {
 public:
  static constexpr std::size_t kUnbounded = std::numeric_limits<std::size_t>::max();

  // Memory for a payload, and its owner.
  struct Room {
    std::shared_ptr<void> owner;
    std::span<std::byte> bytes;
  };
  struct Incoming {
    Room room;                 // empty if the payload lies in the sender's memory, or has no bytes
    std::size_t received = 0;  // bytes
    SentBlock block{};         // set by read() and put()
  };
  enum class Chunk { partial, last, damaged };

  // most: payloads at a time. values: their format, in which all of them must be finite; without it
  // any bytes will do.
  explicit Inbox(std::size_t most = kUnbounded, std::optional<Wire> values = {})
      : most_(most), values_(values) {}

  bool contains(SwapId id) const { return payloads_.contains(id); }
  // True if the payload has begun, or may still begin.
  bool may_take(SwapId id) const { return contains(id) || payloads_.size() < most_; }

  // Returns where the transport writes this chunk: nowhere unless it is the next one. The payload's
  // first chunk calls make_room(). The memory stays valid until received() has been called for this
  // chunk.
  template <class MakeRoom>
  std::span<std::byte> place(SwapId id, const Frame& frame, const MakeRoom& make_room) {
    Incoming& payload = payloads_[id];
    if (payload.received == 0 && !payload.room.owner) payload.room = make_room();
    if (frame.offset != payload.received || frame.offset + frame.length > payload.room.bytes.size())
      return {};
    reading_ = payload.room.owner;
    return payload.room.bytes.subspan(frame.offset, frame.length);
  }
  // A whole payload that lies in the sender's memory.
  void put(SwapId id, SentBlock block);
  // A chunk has come to where place() said. sound: the checksum agrees, and the frame is as it
  // should be. A damaged payload is dropped. A chunk of a payload that was dropped meanwhile is
  // partial.
  Chunk received(SwapId id, const Frame& frame, std::span<const std::byte> chunk, bool sound);

  // The whole payload as a block, which take() then hands out.
  const SentBlock& read(SwapId id, Wire wire, Mask mask = {});
  // The block, if it has come whole, and read() or put() has been called for it; or null.
  const SentBlock* whole(SwapId id) const;
  // Nothing if nothing has come.
  Incoming take(SwapId id);
  void drop(SwapId id) { payloads_.erase(id); }
  void drop_before(std::uint64_t round);
  void clear() { payloads_.clear(); }

 private:
  const std::size_t most_;
  const std::optional<Wire> values_;
  std::map<SwapId, Incoming> payloads_;
  std::shared_ptr<void> reading_;  // what the transport writes to
};

// The incoming blocks of one edge: it hears of each that is whole or damaged. A whole one is kept
// until the edge has decided its swap.
class EdgeInbox : private Inbox {
 public:
  // The edge outlives it.
  EdgeInbox(Edge& edge, std::size_t most, Wire wire) : Inbox(most, wire), edge_(edge), wire_(wire) {}

  // True if the swap's block may still be mixed, and is not too early.
  bool may_take(SwapId id) const { return edge_.wants(id) && Inbox::may_take(id); }
  // Inbox::place() in a buffer of the pool: of a sound frame, for a block that it may_take().
  std::span<std::byte> place(SwapId id, const Frame& frame, BufferPool& pool);
  // Takes a whole block that lies in the sender's memory. good = false: it will not be mixed.
  void put(SwapId id, SentBlock block, bool good = true);
  // The chunk has come. flaw: says what is wrong with a whole block, or nothing. Returns what is
  // wrong with a block that will not be mixed: kDamaged, or what `flaw` said.
  static constexpr std::string_view kDamaged = "damaged", kJumps = "that jumps";
  using Flaw = std::function<std::string_view(const SentBlock&)>;
  std::string_view received(SwapId id, const Frame& frame, std::span<const std::byte> chunk, bool sound,
                            const Flaw& flaw, Mask mask = {});
  // The block of a swap that is decided, if it has come.
  SentBlock take(SwapId id) { return Inbox::take(id).block; }
  using Inbox::clear, Inbox::contains, Inbox::drop, Inbox::drop_before, Inbox::whole;

 private:
  Edge& edge_;
  const Wire wire_;
};

// A buffer of the pool.
Inbox::Room room_of(BufferPool& pool, std::size_t bytes);

// The warning about a damaged chunk. counted: what the frame's round counts.
std::string damage(int from, const Frame& frame, const char* counted);

}  // namespace starling
