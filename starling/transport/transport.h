// Carries the frames: connections to peers, a thread of its own, a clock. The protocol above
// (exchange/) knows nothing of sockets; this layer knows nothing of rounds.
//
// All handler calls and all posted functions run on the transport's one thread, one at a time. All
// methods of Transport may be called from any thread, except where stated; none of them calls the
// handler before it returns. Neither the handler nor a posted function may throw.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "starling/core/clock.h"
#include "starling/transport/buffer.h"
#include "starling/transport/condition.h"
#include "starling/transport/frame.h"

namespace starling {

class TransportHandler {
 public:
  virtual ~TransportHandler() = default;
  // An authenticated connection to `peer` exists (again). It delivers no frame that was sent before
  // this call.
  virtual void connected(int peer) = 0;
  // The connection broke or was closed. All queued frames are dropped. The transport redials by
  // itself; `reason` is one line.
  virtual void disconnected(int peer, const std::string& reason) = 0;
  // The peer is gone: its process has ended (its port refuses), or it did not come back within
  // `lost_after`. Called once per loss; a later connected() revokes it.
  virtual void lost(int peer, const std::string& reason) = 0;
  // The process of a lost peer has ended: it is not merely cut off. Called after lost(), if it
  // becomes known.
  virtual void ended(int) {}
  // The destination of this frame's payload; the handler has checked offset and length. An empty
  // span means not wanted: the transport skips the payload and still calls received() with intact =
  // false. The span must stay valid until received() or disconnected() of this peer, or until
  // stop() has returned.
  virtual std::span<std::byte> place(int peer, const Frame& frame) = 0;
  // A whole frame has come. `payload` is the span from place() (empty without a payload). `intact`:
  // its length and checksum agree, and it was placed.
  virtual void received(int peer, const Frame& frame, std::span<const std::byte> payload, bool intact) = 0;
  // A whole payload of frame.total bytes lies in memory that this process may read. The peer does
  // not write there until payload.owner is released, on any thread. No bit was lost on the way.
  // Nothing enforces the peer's promise not to write. False: not wanted in place; the payload then
  // comes in chunks, through place() and received(). The owner may outlive the transport.
  virtual bool received_in_place(int, const Frame&, const Payload&) { return false; }
};

class Transport {
 public:
  virtual ~Transport() =
      default;  // closes all connections and joins the thread; no handler call after it returns

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Sets the handler and starts. Call once, before anything else.
  virtual void start(TransportHandler& handler) = 0;
  // Stops. No handler call after it returns. Not on the transport's thread.
  virtual void stop() = 0;
  // Requests a connection with `peer` from now on: dials or accepts, and redials when it breaks.
  // Idempotent.
  virtual void open(int peer) = 0;
  // Breaks the current connection, if any (disconnected() follows), and redials.
  virtual void reset(int peer, const std::string& reason) = 0;

  // A buffer of `size` bytes to write and then to send, in the memory from which this transport
  // sends best. Its content is undefined. It may be used again once the last holder has released it
  // and no peer reads it any more.
  virtual std::shared_ptr<Buffer> buffer(std::size_t size) { return heap_.take(size); }

  // Queues a frame. Control frames (no payload, or payload up to 4 KB) overtake bulk; each kind
  // keeps its own order. Payloads that a peer reads in place may overtake both kinds and cannot be
  // cancelled. Bulk is cut into chunks of Frame::kMaxPayload. This call fills in each chunk's
  // offset, length and checksum (frame.offset is the offset of the whole payload; a frame.total of
  // 0 becomes its end). Frames are dropped silently when not connected. Throws UsageError if the
  // payload does not lie within frame.total.
  virtual void send(int peer, Frame frame, Payload payload = {}) = 0;
  // Drops the frames to this peer with this type, round and block whose writing has not begun.
  virtual void cancel(int peer, FrameType type, std::uint64_t round, std::uint32_t block) = 0;

  // Run `work` on the transport's thread, as soon as possible / not before `when`.
  virtual void post(std::function<void()> work) = 0;
  virtual void at(Time when, std::function<void()> work) = 0;
  virtual Time now() const = 0;
  // May be notified on any thread, and waited for on any but the transport's thread. It may outlive
  // the transport, but must not be waited for then.
  virtual std::unique_ptr<Condition> condition() const { return clock_condition(); }

  // Bytes handed to the operating system so far, including headers, control frames, and the
  // payloads that peers read in place.
  virtual std::uint64_t bytes_sent() const = 0;
  // The part of them that is values of parameters or gradients (frame.h: carries_values), without
  // heartbeats and the like, which time and load add.
  virtual std::uint64_t payload_sent() const = 0;
  // The part of them that peers read in place.
  virtual std::uint64_t bytes_in_place() const { return 0; }

 private:
  BufferPool heap_;
};

}  // namespace starling
