// What carries the frames: connections to peers, a thread of its own, a clock. The protocol above (exchange/) knows
// nothing of sockets; this layer knows nothing of rounds.
//
// All handler calls and all posted functions run on the transport's one thread, one at a time. All methods of
// Transport may be called from any thread, except where stated; none of them calls the handler before it returns.
// Neither the handler nor a posted function may throw.
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
  // An authenticated connection to `peer` stands (again). Frames sent before this call are not delivered on it.
  virtual void connected(int peer) = 0;
  // It broke or was closed. All that was queued is dropped. The transport redials by itself; `reason` is one line.
  virtual void disconnected(int peer, const std::string& reason) = 0;
  // Nobody is there: the peer's process has ended (its port refuses) or it did not come back within `lost_after`.
  // Called once per loss; a later connected() takes it back.
  virtual void lost(int peer, const std::string& reason) = 0;
  // Where the payload of this frame (offset, length checked by the handler) belongs. An empty span: not wanted, the
  // transport reads past it and still calls received() with intact = false. The span must stay valid until received()
  // or disconnected() of this peer, or until stop() has returned.
  virtual std::span<std::byte> place(int peer, const Frame& frame) = 0;
  // A whole frame has come. `payload` is the span that place() gave (empty without a payload). intact: its length and
  // CRC32C agree and it was placed.
  virtual void received(int peer, const Frame& frame, std::span<const std::byte> payload, bool intact) = 0;
  // A whole payload, frame.total bytes, lies where this process may read it; the peer does not write there until
  // payload.owner is let go, on whatever thread. That no bit was lost on the way is sure; what the peer promised not to do
  // (nothing keeps it from writing there all the same) is not. False: not wanted so; then it comes in chunks, through place()
  // and received(). The owner may outlive the transport.
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
  // Stops: no handler call after it returns. Not on the transport's thread.
  virtual void stop() = 0;
  // Wants a connection with `peer` from now on: dials or accepts, redials when it breaks. Idempotent.
  virtual void open(int peer) = 0;
  // Breaks the connection that stands, if any (disconnected() follows); redials.
  virtual void reset(int peer, const std::string& reason) = 0;

  // A buffer of `size` bytes to write and then to send, from where this transport sends best; what is in it is whatever was
  // in it. It may be used again once the last holder has let go and no peer reads it any more.
  virtual std::shared_ptr<Buffer> buffer(std::size_t size) { return heap_.take(size); }

  // Queues a frame. Control frames (no payload, or payload up to 4 KB) overtake bulk; among themselves both kinds keep
  // their order. What a peer reads in place may overtake both kinds and is not cancelled. Bulk is cut into chunks of
  // Frame::kMaxPayload, each with its own offset, length and checksum, which this call fills in (frame.offset is the offset
  // of the whole payload; a frame.total of 0 becomes its end). Dropped silently when not connected. Throws UsageError when
  // the payload does not lie within frame.total.
  virtual void send(int peer, Frame frame, Payload payload = {}) = 0;
  // Drops what was sent to this peer with this type, round and block and has not yet begun to be written.
  virtual void cancel(int peer, FrameType type, std::uint64_t round, std::uint32_t block) = 0;

  // Runs `work` on the transport's thread, as soon as possible / not before `when`.
  virtual void post(std::function<void()> work) = 0;
  virtual void at(Time when, std::function<void()> work) = 0;
  virtual Time now() const = 0;
  // Notified on any thread, waited for on one that is not the transport's. It may outlive the transport, but not be waited for
  // then.
  virtual std::unique_ptr<Condition> condition() const { return clock_condition(); }

  // Bytes handed to the operating system so far, headers and control frames included, and those of the payloads that peers
  // read where they lie.
  virtual std::uint64_t bytes_sent() const = 0;
  virtual std::uint64_t bytes_in_place() const { return 0; }  // of these, the latter

 private:
  BufferPool heap_;
};

}  // namespace starling
