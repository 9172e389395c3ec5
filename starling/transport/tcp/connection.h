// Frames in and out of one stream whose peer is authenticated. Lives on the transport's thread
// alone.
//
// Sending: queued frames go in batches, all control frames first and then at most one chunk of
// bulk. Header and payload are gathered from their places. The kernel takes little more than it can
// send at once (TCP_NOTSENT_LOWAT), so the rest stays here, where control can still overtake it.
// Receiving: the payload is read to the handler's memory, in one call with the next header. The
// handler learns of nothing whose seal (seal.h) is wrong: the connection then breaks.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "starling/transport/frame.h"
#include "starling/transport/outbox.h"
#include "starling/transport/tcp/asio.h"
#include "starling/transport/tcp/handshake.h"
#include "starling/transport/tcp/local_end.h"
#include "starling/transport/tcp/seal.h"

namespace starling::tcp {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // `broken` is called once, never from a call of this class, and not after close() or finish().
  Connection(LocalEnd& local, ProvenStream proven, int peer,
             std::function<void(const std::string& reason)> broken);

  void start();
  Time heard() const { return heard_; }  // the last byte of the peer
  void send(const Frame& frame, Payload payload);
  void cancel(FrameType type, std::uint64_t round, std::uint32_t block);
  // Drops everything. Neither the handler nor broken() is called any more.
  void close();
  // Sends the queued frames, waits until the peer has read them and closed, then calls done().
  // Delivers nothing.
  void finish(std::function<void()> done);

 private:
  auto unless_closed(void (Connection::*f)());  // a handler for asio: calls f unless it is closed by then
  void set_options();
  void read();
  void advance(std::size_t bytes);
  std::span<std::byte> awaited_between();  // as much of between_ as this connection has
  void payload_complete();
  void head_complete();
  void break_off();
  void discard();

  void write_soon();
  void write();
  void fill_batch();

  void fail(const std::string& reason);

  LocalEnd& local_;
  Stream stream_;
  Seals seals_;
  const int peer_;
  const std::string name_;  // host:port of the peer
  std::function<void(const std::string&)> broken_;
  std::function<void()> finished_;  // set: finishing
  bool closed_ = false;

  // receiving
  Time heard_ = Clock::now();
  Frame frame_;                 // whose payload is being read
  std::span<std::byte> place_;  // the payload's destination
  bool wanted_ = false;         // place_ is the handler's
  std::size_t payload_read_ = 0;
  // The tag of the payload, and the next frame's header with its tag.
  std::array<std::byte, Seal::kTag + Frame::kBytes + Seal::kTag> between_{};
  std::size_t between_read_;        // without a payload, the first tag counts as read
  std::vector<std::byte> scratch_;  // for unwanted payloads

  // sending
  struct ClosedFrame {
    Seal::Closed seal;
    Payload payload;
  };
  Outbox outbox_;
  std::size_t chunk_ = Frame::kMaxPayload;
  std::vector<ClosedFrame> batch_;           // being written
  std::vector<asio::const_buffer> buffers_;  // the unwritten rest of the batch
  bool writing_ = false;                     // a write() is in flight
};

}  // namespace starling::tcp
