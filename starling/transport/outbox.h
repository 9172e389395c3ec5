// The send queue of one connection, in sending order: control frames before bulk, each kind in its
// own order, bulk cut into chunks. Every transport keeps one per connection, and only its own
// thread touches it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "starling/transport/frame.h"
#include "starling/transport/transport.h"

namespace starling {

class Outbox {
 public:
  // A payload up to this size is control, whatever its type.
  static constexpr std::size_t kMaxControl = 4096;

  struct Chunk {
    Frame frame;  // offset and length are this chunk's; without a checksum
    Payload payload;
    bool control = false;
  };

  // Throws UsageError if the payload does not lie within frame.total. A total of zero becomes the
  // payload's end.
  static void check(Frame& frame, const Payload& payload);

  void push(const Frame& frame, Payload payload);
  // Drops all chunks of this type, round and block that have not been taken.
  void cancel(FrameType type, std::uint64_t round, std::uint32_t block);
  void clear();

  bool empty() const { return control_.empty() && bulk_.empty(); }
  // The next chunk to send, of at most `most` bytes. Only if not empty.
  Chunk take(std::size_t most = Frame::kMaxPayload);

 private:
  struct Message {
    Frame frame;
    Payload payload;
    std::size_t taken = 0;  // bytes of the payload
  };

  std::deque<Message> control_;
  std::deque<Message> bulk_;
};

}  // namespace starling
