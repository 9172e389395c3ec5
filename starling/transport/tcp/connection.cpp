#include "starling/transport/tcp/connection.h"

#include <algorithm>
#include <functional>
#include <utility>

#include <fmt/format.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace starling::tcp {
namespace {

// Between hosts, control frames wait for the bytes that the kernel has not sent yet, and for the
// rest of a started chunk. With chunks of 256 KB that is a third of their delay (bench/exchange.py,
// control_under_load_ms). Smaller chunks cost a twentieth more processor time.
constexpr int kNotSentLowat = 64 * 1024;
constexpr std::size_t kChunkBetweenHosts = 64 * 1024;
// Bytes in flight to a worker on this host. The kernel's default is megabytes, in pages that have
// left the sender's cache when they are written to again: 1.4 times the time
// (docs/results/measurements.md). Between hosts the buffer must hold what the line carries in a
// round trip, which is left to the kernel.
constexpr int kSentWithinHost = 128 * 1024;
// Three buffers each: below the limit of one system call.
constexpr std::size_t kMaxControlInBatch = 20;
// Bytes in one direction before the other connections get a turn.
constexpr std::size_t kTurn = 1 << 20;

void set_option(Tcp::socket& socket, int level, int name, int value) {
  // A kernel that lacks one of these options still carries frames.
  static_cast<void>(::setsockopt(socket.native_handle(), level, name, &value, sizeof value));
}

}  // namespace

auto Connection::unless_closed(void (Connection::*f)()) {
  return [self = shared_from_this(), f](const auto&...) {
    if (!self->closed_) std::invoke(f, *self);
  };
}

Connection::Connection(LocalEnd& local, ProvenStream proven, int peer,
                       std::function<void(const std::string& reason)> broken)
    : local_(local),
      stream_(std::move(proven.stream)),
      seals_(std::move(proven.seals)),
      peer_(peer),
      name_(name_of_peer(stream_.socket())),
      broken_(std::move(broken)),
      between_read_(seals_.in.tag_bytes()) {
  set_options();
}

void Connection::set_options() {
  using std::chrono::duration_cast;
  const auto silent = local_.timeouts.silent;
  const int whole_seconds =
      std::max<int>(1, static_cast<int>(duration_cast<std::chrono::seconds>(silent).count()));
  asio::error_code ignored;
  stream_.socket().non_blocking(true, ignored);
  set_option(stream_.socket(), IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(stream_.socket(), SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(stream_.socket(), IPPROTO_TCP, TCP_KEEPIDLE, whole_seconds);
  set_option(stream_.socket(), IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_option(stream_.socket(), IPPROTO_TCP, TCP_KEEPCNT, whole_seconds);
  set_option(stream_.socket(), IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(2 * silent.count()));
  set_option(stream_.socket(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, kNotSentLowat);
  if (within_host(stream_.socket()))
    set_option(stream_.socket(), SOL_SOCKET, SO_SNDBUF, kSentWithinHost);
  else
    chunk_ = kChunkBetweenHosts;
}

void Connection::start() { asio::post(local_.io, unless_closed(&Connection::read)); }

// --- receiving ---

void Connection::read() {
  for (std::size_t turn = 0; turn < kTurn;) {
    if (finished_) return discard();
    const auto payload = place_.subspan(payload_read_);
    const auto between = awaited_between().subspan(between_read_);
    const std::array<asio::mutable_buffer, 2> buffers = {asio::buffer(payload.data(), payload.size()),
                                                         asio::buffer(between.data(), between.size())};
    asio::error_code error;
    const std::size_t bytes = stream_.read_some(buffers, error);
    if (error == asio::error::would_block)
      return stream_.socket().async_wait(Tcp::socket::wait_read, unless_closed(&Connection::read));
    if (error) return fail(stream_.reason_of(error));
    heard_ = Clock::now();
    advance(bytes);
    if (closed_) return;
    turn += bytes;
  }
  asio::post(local_.io, unless_closed(&Connection::read));
}

void Connection::advance(std::size_t bytes) {
  const std::size_t of_payload = std::min(bytes, place_.size() - payload_read_);
  payload_read_ += of_payload;
  between_read_ += bytes - of_payload;
  const bool is_whole = payload_read_ == place_.size() && between_read_ >= seals_.in.tag_bytes();
  if (!place_.empty() && is_whole) payload_complete();
  if (!closed_ && between_read_ == awaited_between().size()) head_complete();
}

std::span<std::byte> Connection::awaited_between() {
  return std::span(between_).first(seals_.in.tag_bytes() + seals_.in.head_bytes());
}

void Connection::payload_complete() {
  const auto tag = awaited_between().first(seals_.in.tag_bytes());
  const bool intact = seals_.in.is_intact(frame_, place_, tag);
  if (seals_.in.is_forged()) return break_off();
  const std::span<std::byte> payload = wanted_ ? place_ : std::span<std::byte>{};
  place_ = {};
  payload_read_ = 0;
  local_.handler->received(peer_, frame_, payload, wanted_ && intact);
}

void Connection::head_complete() {
  const auto frame = seals_.in.open(awaited_between().subspan(seals_.in.tag_bytes()));
  if (!frame) return break_off();
  frame_ = *frame;
  between_read_ = frame_.length == 0 ? seals_.in.tag_bytes() : 0;
  if (frame_.length == 0) {
    local_.handler->received(peer_, frame_, {}, seals_.in.is_intact(frame_, {}, {}));
    return;
  }
  place_ = local_.handler->place(peer_, frame_);
  wanted_ = place_.size() == frame_.length;
  if (!wanted_) {
    scratch_.resize(Frame::kMaxPayload);
    place_ = std::span(scratch_).first(frame_.length);
  }
}

void Connection::break_off() {
  if (!seals_.in.is_forged()) return fail("it sent a frame with a damaged header");
  const std::string reason =
      "a frame did not come as it was sent: something between the workers changes, drops, repeats or moves "
      "frames";
  local_.warn(fmt::format("tcp transport: worker {} breaks the connection to worker {} at {}: {}",
                          local_.identity.rank, peer_, name_, reason));
  fail(reason);
}

// While finishing: reads on to the peer's end. Otherwise the kernel would drop our bytes in answer
// to unread ones.
void Connection::discard() {
  scratch_.resize(Frame::kMaxPayload);
  stream_.socket().async_read_some(asio::buffer(scratch_),
                                   [self = shared_from_this()](const asio::error_code& error, std::size_t) {
                                     if (self->closed_) return;
                                     if (error) return self->fail(self->stream_.reason_of(error));
                                     self->discard();
                                   });
}

// --- sending ---

void Connection::send(const Frame& frame, Payload payload) {
  outbox_.push(frame, std::move(payload));
  write_soon();
}

void Connection::cancel(FrameType type, std::uint64_t round, std::uint32_t block) {
  outbox_.cancel(type, round, block);
}

// Not at once: the caller's next frames may go in the same batch, and broken() is never called from
// within the caller's call.
void Connection::write_soon() {
  if (std::exchange(writing_, true)) return;
  asio::post(local_.io, unless_closed(&Connection::write));
}

void Connection::write() {
  for (std::size_t turn = 0; turn < kTurn;) {
    if (buffers_.empty()) fill_batch();
    if (buffers_.empty()) {
      writing_ = false;
      if (finished_) {
        asio::error_code ignored;
        stream_.socket().shutdown(Tcp::socket::shutdown_send, ignored);
      }
      return;
    }
    asio::error_code error;
    std::size_t bytes = stream_.write_some(buffers_, error);
    if (error == asio::error::would_block)
      return stream_.socket().async_wait(Tcp::socket::wait_write, unless_closed(&Connection::write));
    if (error) return fail(stream_.reason_of(error));
    local_.bytes_sent += bytes;
    turn += bytes;
    auto left = buffers_.begin();
    for (; left != buffers_.end() && bytes >= left->size(); ++left) bytes -= left->size();
    if (left != buffers_.end()) *left += bytes;
    buffers_.erase(buffers_.begin(), left);
    if (buffers_.empty()) batch_.clear();
  }
  asio::post(local_.io, unless_closed(&Connection::write));
}

void Connection::fill_batch() {
  bool bulk = false;
  while (!bulk && !outbox_.empty() && batch_.size() < kMaxControlInBatch) {
    auto chunk = outbox_.take(chunk_);
    bulk = !chunk.control;
    if (carries_values(chunk.frame.type)) local_.payload_sent += chunk.frame.length;
    batch_.push_back({seals_.out.close(chunk.frame, chunk.payload.bytes), std::move(chunk.payload)});
  }
  for (const ClosedFrame& frame : batch_) {
    buffers_.push_back(asio::buffer(frame.seal.head, seals_.out.head_bytes()));
    const auto payload = frame.payload.bytes;
    if (payload.empty()) continue;
    buffers_.push_back(asio::buffer(payload.data(), payload.size()));
    if (seals_.out.is_sealed()) buffers_.push_back(asio::buffer(frame.seal.tail));
  }
}

// --- the end ---

void Connection::close() {
  if (std::exchange(closed_, true)) return;
  stream_.close();
  outbox_.clear();
  buffers_.clear();
  batch_.clear();
}

void Connection::finish(std::function<void()> done) {
  finished_ = std::move(done);
  // A read() may be waiting for the socket to become readable; it then calls discard().
  write_soon();
}

void Connection::fail(const std::string& reason) {
  close();
  if (finished_) return finished_();
  const auto broken = std::move(broken_);
  broken(reason);
}

}  // namespace starling::tcp
