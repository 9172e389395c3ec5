#include "starling/transport/c10d/group_transport.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include "starling/core/crc32c.h"
#include "starling/core/with_lock.h"
#include "starling/transport/buffer.h"
#include "starling/transport/c10d/hand_to_gloo.h"
#include "starling/transport/c10d/one_line.h"
#include "starling/transport/c10d/piece.h"
#include "starling/transport/outbox.h"
#include "starling/transport/tcp/tcp.h"

namespace starling {
namespace group {
namespace {

// Pieces of one peer that are asked for at a time: the sender may be ahead of the threads that wait
// here.
constexpr std::size_t kMostAsked = 4;
// Longer than any run: a wait that timed out would close all connections of a Gloo group. A wait
// ends earlier with the operation, when it is aborted, or with the peer's process.
constexpr auto kForever = std::chrono::hours(24 * 365);

using Work = c10::intrusive_ptr<c10d::Work>;

// begin(tensors) starts a send or recv of these bytes. Throws if the group refuses.
template <class Begin>
Work hand_over(std::span<const std::byte> bytes, const Begin& begin) {
  std::vector<at::Tensor> piece{at::from_blob(const_cast<std::byte*>(bytes.data()),
                                              {static_cast<std::int64_t>(bytes.size())}, at::kByte)};
  const WithoutSigpipe errors_only;
  const std::lock_guard lock(flight_recorder());
  return begin(piece);
}

// The way from the waiting threads back to the transport, while it exists.
class WayBack {
 public:
  explicit WayBack(Transport& transport) : transport_(&transport) {}
  void post(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    if (transport_) transport_->post(std::move(work));
  }
  void close() {
    const std::lock_guard lock(mutex_);
    transport_ = nullptr;
  }

 private:
  std::mutex mutex_;
  Transport* transport_;
};

// A thread of its own waits for the end of this operation and keeps its memory alive.
// ended(failure) runs on the transport's thread. The failure is empty if the operation succeeded or
// was aborted. The thread may outlive the transport.
void when_ended(const std::shared_ptr<WayBack>& way_back, Work work, std::shared_ptr<const void> owner,
                std::function<void(const std::string& failure)> ended) {
  std::thread([way_back, work = std::move(work), owner = std::move(owner),
               ended = std::move(ended)]() mutable {
    std::string failure;
    try {
      work->wait(kForever);
    } catch (const std::exception& thrown) {
      failure = one_line(thrown);
    }
    work.reset();
    owner.reset();
    way_back->post([ended = std::move(ended), failure = std::move(failure)] { ended(failure); });
  }).detach();
}

class GroupTransport final : public Transport, private TransportHandler {
 public:
  GroupTransport(c10::intrusive_ptr<c10d::Backend> backend, std::shared_ptr<Tags> tags, const World& world,
                 const std::string& channel)
      : backend_(std::move(backend)),
        tags_(std::move(tags)),
        life_(static_cast<std::uint64_t>(tags_->next())),
        log_(world.log),
        peers_(static_cast<std::size_t>(world.size)),
        tcp_(make_tcp_transport(world, channel)),
        way_back_(std::make_shared<WayBack>(*tcp_)) {}
  ~GroupTransport() override { stop(); }

  int rank() const override { return tcp_->rank(); }
  int size() const override { return tcp_->size(); }
  void start(TransportHandler& handler) override {
    handler_ = &handler;
    tcp_->start(*this);
  }
  void stop() override {
    tcp_->stop();
    way_back_->close();
    for (Peer& other : peers_) let_go(other);
  }
  void open(int peer) override { tcp_->open(peer); }
  void reset(int peer, const std::string& reason) override { tcp_->reset(peer, reason); }
  void post(std::function<void()> work) override { tcp_->post(std::move(work)); }
  void at(Time when, std::function<void()> work) override { tcp_->at(when, std::move(work)); }
  Time now() const override { return tcp_->now(); }
  std::uint64_t bytes_sent() const override { return tcp_->bytes_sent() + bytes_by_group_; }
  std::uint64_t payload_sent() const override { return tcp_->payload_sent() + bytes_by_group_; }

  void send(int rank, Frame frame, Payload payload) override {
    const bool bulk =
        payload.bytes.size() > Outbox::kMaxControl && rank >= 0 && rank < size() && rank != this->rank();
    if (!bulk) return tcp_->send(rank, frame, std::move(payload));
    Outbox::check(frame, payload);
    {
      const std::lock_guard lock(mutex_);
      Peer& other = peer(rank);
      if (!other.up) return;
      if (!other.failed) {
        other.waiting.push_back({frame, std::move(payload), 0});
        tcp_->post([this, rank] { begin_piece(rank); });
        return;
      }
    }
    tcp_->send(rank, frame, std::move(payload));
  }

  void cancel(int rank, FrameType type, std::uint64_t round, std::uint32_t block) override {
    tcp_->cancel(rank, type, round, block);
    std::vector<Message> dropped;  // destroyed outside the lock
    const std::lock_guard lock(mutex_);
    std::erase_if(peer(rank).waiting, [&](Message& message) {
      const bool matches =
          message.frame.type == type && message.frame.round == round && message.frame.block == block;
      if (matches) dropped.push_back(std::move(message));
      return matches;
    });
  }

 private:
  struct Message {
    Frame frame;
    Payload payload;
    std::size_t taken = 0;  // bytes that have gone
  };
  struct Coming {
    Piece piece;
    std::optional<Buffer> memory = {};  // once the group was asked
    bool ended = false;
  };
  struct Peer {
    // The mutex guards these.
    bool up = false;
    bool failed = false;  // the group, between us: permanently
    std::deque<Message> waiting;
    // Only the transport's thread touches the rest.
    std::uint64_t connection = 0;                // by number
    bool ready = false;                          // the peer has said what it has taken
    std::uint64_t life = 0;                      // identifies the peer's transport
    std::uint64_t begun = 0;                     // pieces, to any life
    Work in_flight;                              // the last of them, until it ends
    std::uint64_t taken = 0;                     // pieces of the peer's present life
    std::deque<std::shared_ptr<Coming>> coming;  // over this connection
    std::vector<std::byte> control;              // payload of a `piece` frame, while it is received
  };
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  // Drops the waiting payloads, and takes no more.
  void let_go(Peer& other) {
    std::deque<Message> dropped;  // destroyed outside the lock
    const std::lock_guard lock(mutex_);
    other.up = false;
    dropped.swap(other.waiting);
  }

  // ---------------------------------------------------------------- the sender

  void begin_piece(int rank) {
    Peer& other = peer(rank);
    if (!other.ready || other.in_flight) return;
    Piece piece;
    Payload payload;
    {
      const std::lock_guard lock(mutex_);
      if (other.failed || other.waiting.empty()) return;
      Message& message = other.waiting.front();
      const std::size_t length = std::min(Piece::kMaxLength, message.payload.bytes.size() - message.taken);
      payload = {message.payload.owner, message.payload.bytes.subspan(message.taken, length)};
      piece = {message.frame, ++other.begun, static_cast<std::uint64_t>(tags_->next()), length, 0};
      piece.frame.offset += message.taken;
      piece.frame.length = 0;
      message.taken += length;
      if (message.taken == message.payload.bytes.size()) other.waiting.pop_front();
    }
    piece.crc = crc32c(payload.bytes);
    try {
      other.in_flight = hand_over(payload.bytes, [&](std::vector<at::Tensor>& tensors) {
        return backend_->send(tensors, rank, static_cast<int>(piece.tag));
      });
    } catch (const std::exception& thrown) {
      return failed(rank, one_line(thrown));
    }
    const auto bytes = std::make_shared<const std::vector<std::byte>>(piece.encode());
    tcp_->send(rank, {.type = FrameType::piece}, {bytes, *bytes});
    bytes_by_group_ += piece.length;
    when_ended(way_back_, other.in_flight, payload.owner,
               [this, rank, sequence = piece.sequence](const std::string& failure) {
                 Peer& other = peer(rank);
                 if (sequence == other.begun) other.in_flight.reset();
                 if (!failure.empty()) return failed(rank, failure);
                 begin_piece(rank);
               });
  }

  // The peer has asked the group for our pieces up to this one.
  void peer_has_taken(int rank, std::uint64_t life, std::uint64_t sequence) {
    Peer& other = peer(rank);
    if (other.in_flight && life != other.life) {
      other.in_flight.reset();  // the earlier life may have taken it: its thread waits on
    } else if (other.in_flight && other.begun > sequence) {
      call_back(other);  // the peer never heard of it
    }
    if (life != other.life) other.taken = 0;
    if (other.life == 0)
      log_(Level::info, fmt::format("transport: payloads for worker {} go by {}", rank, group_name()));
    other.life = life;
    other.ready = true;
    begin_piece(rank);
  }

  static void call_back(Peer& other) {
    try {
      other.in_flight->abort();  // its thread sees the end
    } catch (const std::exception&) {
      other.in_flight.reset();  // the backend cannot abort: its thread waits on
    }
  }

  // Nothing is in flight on this connection yet.
  void peer_takes_no_more(int rank) {
    Peer& other = peer(rank);
    const std::lock_guard lock(mutex_);
    other.failed = true;
    for (Message& message : other.waiting) tcp_->send(rank, message.frame, std::move(message.payload));
    other.waiting.clear();
  }
  void failed(int rank, const std::string& reason) {
    if (with_lock(mutex_, [&] { return std::exchange(peer(rank).failed, true); })) return;
    log_(Level::warning,
         fmt::format("transport: {} fails with worker {} ({}): from now on its payloads go over TCP",
                     group_name(), rank, reason));
    tcp_->reset(rank, fmt::format("worker {}: a payload was lost with {} ({})", rank, group_name(), reason));
  }
  std::string group_name() const { return fmt::format("the process group ({})", backend_->getBackendName()); }

  // ---------------------------------------------------------------- the receiver

  // False: the announcement cannot be true.
  bool piece_comes(int rank, std::span<const std::byte> bytes) {
    const auto piece = Piece::decode(bytes);
    auto& coming = peer(rank).coming;
    // The sender announces one piece after the other, so it is ahead at most by what was asked for.
    if (!piece || !piece->lies_within() || !tags_->has(piece->tag) || coming.size() > kMostAsked)
      return false;
    coming.push_back(std::make_shared<Coming>(Coming{*piece}));
    ask(rank);
    return true;
  }

  void ask(int rank) {
    Peer& other = peer(rank);
    const std::size_t most = std::min(kMostAsked, other.coming.size());
    for (std::size_t i = 0; i < most; ++i) {
      const std::shared_ptr<Coming> coming = other.coming[i];
      if (coming->memory) continue;
      other.taken = coming->piece.sequence;
      coming->memory.emplace(coming->piece.length);
      Work work;
      try {
        work = hand_over(*coming->memory, [&](std::vector<at::Tensor>& tensors) {
          return backend_->recv(tensors, rank, static_cast<int>(coming->piece.tag));
        });
      } catch (const std::exception& thrown) {
        return failed(rank, one_line(thrown));
      }
      when_ended(way_back_, std::move(work), coming,
                 [this, rank, coming, connection = other.connection](const std::string& failure) {
                   coming->ended = true;
                   if (!failure.empty()) return failed(rank, failure);
                   if (peer(rank).connection == connection) deliver(rank);
                 });
    }
  }

  // Delivers in the order of sending, whichever thread sees its end first.
  void deliver(int rank) {
    auto& coming = peer(rank).coming;
    while (!coming.empty() && coming.front()->ended) {
      const std::shared_ptr<Coming> first = std::move(coming.front());
      coming.pop_front();
      const std::span<const std::byte> whole(*first->memory);
      deliver_in_chunks(*handler_, rank, first->piece.frame, whole, crc32c(whole) == first->piece.crc);
    }
    ask(rank);
  }

  // ---------------------------------------------------------------- tcp's handler

  void connected(int rank) override {
    Peer& other = peer(rank);
    ++other.connection;
    with_lock(mutex_, [&] { other.up = true; });
    tcp_->send(
        rank,
        {.type = FrameType::taken, .round = life_, .step = other.failed ? 1U : 0U, .value = other.taken});
    handler_->connected(rank);
  }
  void disconnected(int rank, const std::string& reason) override {
    Peer& other = peer(rank);
    ++other.connection;
    other.ready = false;
    other.coming.clear();
    let_go(other);
    handler_->disconnected(rank, reason);
  }
  void lost(int rank, const std::string& reason) override { handler_->lost(rank, reason); }
  void ended(int rank) override { handler_->ended(rank); }

  std::span<std::byte> place(int rank, const Frame& frame) override {
    if (frame.type != FrameType::piece) return handler_->place(rank, frame);
    if (frame.length > Outbox::kMaxControl || frame.offset != 0) return {};
    peer(rank).control.resize(frame.length);
    return peer(rank).control;
  }
  void received(int rank, const Frame& frame, std::span<const std::byte> payload, bool intact) override {
    if (frame.type == FrameType::taken)
      return frame.step == 0 ? peer_has_taken(rank, frame.round, frame.value) : peer_takes_no_more(rank);
    if (frame.type != FrameType::piece) return handler_->received(rank, frame, payload, intact);
    if (!intact || !piece_comes(rank, payload)) tcp_->reset(rank, "the announcement of a piece is damaged");
  }

  const c10::intrusive_ptr<c10d::Backend> backend_;
  const std::shared_ptr<Tags> tags_;
  const std::uint64_t life_;
  const Log log_;
  TransportHandler* handler_ = nullptr;
  std::atomic<std::uint64_t> bytes_by_group_ = 0;

  std::mutex mutex_;
  std::vector<Peer> peers_;
  std::unique_ptr<Transport> tcp_;
  const std::shared_ptr<WayBack> way_back_;
};

}  // namespace
}  // namespace group

std::function<std::unique_ptr<Transport>(const World&, const std::string& channel)> group_transports(
    c10d::Backend& backend, std::int64_t call) {
  return [group = c10::intrusive_ptr<c10d::Backend>::unsafe_reclaim_from_nonowning(&backend),
          tags = std::make_shared<Tags>(call)](const World& world, const std::string& channel) {
    return std::make_unique<group::GroupTransport>(group, tags, world, channel);
  };
}

}  // namespace starling
