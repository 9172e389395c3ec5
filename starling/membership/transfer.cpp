#include "starling/membership/transfer.h"

#include <atomic>
#include <mutex>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "starling/core/crc32c.h"
#include "starling/core/error.h"
#include "starling/exchange/monitor.h"
#include "starling/transport/transport.h"

namespace starling {

// Sends all of it after each connection, until the newcomer has read it.
struct Donation::Sender final : TransportHandler {
  Sender(const World& world, const std::string& channel, int to, std::shared_ptr<MemoryFile> given,
         std::uint32_t hash, std::function<void()> changed)
      : state(std::move(given)),
        bytes(state->bytes()),
        hash(hash),
        to(to),
        changed(std::move(changed)),
        transport(world.make_transport(world, channel)) {
    transport->start(*this);
    transport->open(to);
  }
  ~Sender() override { transport->stop(); }

  void connected(int) override {
    is_connected = true;
    if (!is_read) transport->send(to, {.type = FrameType::data, .value = hash}, {state, bytes});
  }
  void disconnected(int, const std::string&) override {
    is_connected = false;
    changed();
  }
  void lost(int, const std::string&) override {
    is_lost = true;
    changed();
  }
  std::span<std::byte> place(int, const Frame&) override { return {}; }
  void received(int, const Frame& frame, std::span<const std::byte>, bool) override {
    if (frame.type != FrameType::ack || is_read.exchange(true)) return;
    changed();
  }

  const std::shared_ptr<MemoryFile> state;
  const std::span<const std::byte> bytes;
  const std::uint32_t hash;
  const int to;
  const std::function<void()> changed;
  std::atomic<bool> is_connected = false, is_read = false, is_lost = false;
  const std::unique_ptr<Transport> transport;  // last: its thread ends before anything else goes
};

Donation::Donation(const World& world, const std::string& channel, int to, std::shared_ptr<MemoryFile> state,
                   std::uint32_t hash, std::function<void()> changed)
    : sender_(std::make_unique<Sender>(world, channel, to, std::move(state), hash, std::move(changed))) {}
Donation::~Donation() = default;
int Donation::to() const { return sender_->to; }
bool Donation::is_taken() const { return sender_->is_read && sender_->is_connected; }
bool Donation::is_over() const { return sender_->is_lost || (sender_->is_read && !sender_->is_connected); }

struct Receipt::Receiver final : TransportHandler {
  Receiver(const World& world, const std::string& channel, int from, std::size_t most)
      : from(from),
        most(most),
        silent(world.timeouts.silent),
        transport(world.make_transport(world, channel)),
        monitor(*transport, world.interrupted) {
    transport->start(*this);
    transport->open(from);
  }
  ~Receiver() override { transport->stop(); }

  void connected(int) override {
    came = 0;
    moved = transport->now();
    is_connected = true;
    if (is_read) transport->send(from, {.type = FrameType::ack});
  }
  void disconnected(int, const std::string&) override { is_connected = false; }
  void lost(int, const std::string& reason) override { end(fmt::format("it is gone ({})", reason)); }
  std::span<std::byte> place(int, const Frame& frame) override {
    if (frame.type != FrameType::data || finished || frame.offset != came) return {};
    if (frame.total > most) {
      end(fmt::format("it has {} bytes, at most {} are possible", frame.total, most));
      return {};
    }
    if (came == 0 && !make_room(frame.total)) return {};
    return frame.total == bytes.size() ? bytes.subspan(frame.offset, frame.length) : std::span<std::byte>();
  }
  void received(int, const Frame& frame, std::span<const std::byte> payload, bool intact) override {
    if (frame.type != FrameType::data || finished) return;
    if (!intact || payload.empty()) return transport->reset(from, "a part of its state was damaged");
    came += payload.size();
    moved = transport->now();
    if (came < bytes.size()) return;
    if (crc32c(bytes) != frame.value) return transport->reset(from, "its state was damaged");
    end("");
  }

  void accept() {
    transport->post([this] {
      is_read = true;
      if (is_connected) transport->send(from, {.type = FrameType::ack});
    });
  }

  bool stands_still() const { return is_connected && transport->now() - moved.load() > silent; }

  bool make_room(std::size_t total) {
    try {
      state.resize(total);
      bytes = state.bytes();
      return true;
    } catch (const Error& refused) {
      end(refused.what());
      return false;
    }
  }

  void end(const std::string& reason) {
    if (finished) return;
    const std::lock_guard lock(monitor.mutex);
    why = reason;
    finished = true;
    monitor.changed->notify_all();
  }

  const int from;
  const std::size_t most;
  const std::chrono::milliseconds silent;
  MemoryFile state;
  // On the transport's thread.
  std::span<std::byte> bytes;
  std::size_t came = 0;
  bool is_read = false;

  std::atomic<bool> finished = false, is_connected = false;
  std::atomic<Time> moved = Time{};  // the connection, or the last part of the state
  std::string why;                   // it has not come; before `finished`
  const std::unique_ptr<Transport> transport;
  Monitor monitor;
};

Receipt::Receipt(const World& world, const std::string& channel, int from, std::size_t most)
    : receiver_(std::make_unique<Receiver>(world, channel, from, most)) {}
Receipt::~Receipt() = default;

void Receipt::wait(std::chrono::milliseconds patience) {
  constexpr std::chrono::milliseconds kLook{100};
  Receiver& r = *receiver_;
  const Time end = r.transport->now() + patience;
  std::unique_lock lock(r.monitor.mutex);
  while (!r.monitor.wait(lock, kLook, [&] { return r.finished.load(); })) {
    if (r.stands_still())
      throw Error(fmt::format("worker {} has stopped while it sent its state: nothing has come for {:g} s",
                              r.from, seconds(r.silent)));
    if (r.transport->now() >= end || r.monitor.is_interrupted(lock))
      throw Error(fmt::format("worker {} has not sent its state within {:g} s", r.from, seconds(patience)));
  }
  if (!r.why.empty()) throw Error(fmt::format("worker {} has not sent its state: {}", r.from, r.why));
}

void Receipt::accept() { receiver_->accept(); }
MemoryFile& Receipt::state() { return receiver_->state; }
bool Receipt::is_connected() const { return receiver_->is_connected; }

}  // namespace starling
