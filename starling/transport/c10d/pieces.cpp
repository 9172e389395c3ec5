#include "starling/transport/c10d/pieces.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "starling/core/crc32c.h"
#include "starling/transport/buffer.h"
#include "starling/transport/c10d/one_line.h"
#include "starling/transport/outbox.h"
#include "starling/transport/tcp/tcp.h"

namespace starling {
namespace pieces {
namespace {

constexpr int kMostFailures = 3;       // of a carrier that renews, in a row
constexpr std::size_t kMostAsked = 4;  // pieces of one peer: its sender may be ahead of our threads that wait

// What is said of a piece. It goes as the payload of a control frame.
struct Piece {
  static constexpr std::size_t kBytes = Frame::kBytes + 4 * sizeof(std::uint64_t);

  Frame frame;  // of the whole payload, but for the offset, which is the piece's
  std::uint64_t sequence = 0, tag = 0, length = 0, crc = 0;
  std::vector<std::byte> note{};  // the carrier's

  std::vector<std::byte> encode() const {
    std::vector<std::byte> bytes(kBytes);
    const auto head = frame.encode();
    const std::array numbers{sequence, tag, length, crc};
    std::memcpy(bytes.data(), head.data(), head.size());
    std::memcpy(bytes.data() + head.size(), numbers.data(), sizeof numbers);
    bytes.insert(bytes.end(), note.begin(), note.end());
    return bytes;
  }
  static std::optional<Piece> decode(std::span<const std::byte> bytes) {
    if (bytes.size() < kBytes) return std::nullopt;
    const auto frame = Frame::decode(bytes.first<Frame::kBytes>());
    if (!frame) return std::nullopt;
    std::array<std::uint64_t, 4> numbers{};
    std::memcpy(numbers.data(), bytes.data() + Frame::kBytes, sizeof numbers);
    const auto note = bytes.subspan(kBytes);
    return Piece{*frame, numbers[0], numbers[1], numbers[2], numbers[3], {note.begin(), note.end()}};
  }
  bool lies_within() const {
    return length > 0 && length <= Carrier::kPiece && frame.offset <= frame.total &&
           length <= frame.total - frame.offset;
  }
};

using Passage = std::shared_ptr<Carrier::Passage>;

// The way from the threads that wait back to the transport, while there is one.
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

// A thread of its own waits for the end of this passage and keeps alive what it works on. ended(failure) runs on the
// transport's thread; an empty failure: it went well, or was called back. The thread may outlive the transport.
void when_ended(const std::shared_ptr<WayBack>& way_back, Passage passage, std::shared_ptr<const void> owner,
                std::function<void(const std::string& failure)> ended) {
  std::thread([way_back, passage = std::move(passage), owner = std::move(owner),
               ended = std::move(ended)]() mutable {
    std::string failure;
    try {
      passage->wait();
    } catch (const std::exception& thrown) {
      failure = one_line(thrown);
    }
    passage.reset();
    owner.reset();
    way_back->post([ended = std::move(ended), failure = std::move(failure)] { ended(failure); });
  }).detach();
}

class PieceTransport final : public Transport, private TransportHandler {
 public:
  PieceTransport(std::shared_ptr<Carrier> carrier, std::shared_ptr<Tags> tags, const World& world,
                 const std::string& channel)
      : carrier_(std::move(carrier)),
        tags_(std::move(tags)),
        life_(static_cast<std::uint64_t>(tags_->next())),
        log_(world.log),
        peers_(static_cast<std::size_t>(world.size)),
        tcp_(make_tcp_transport(world, channel)),
        way_back_(std::make_shared<WayBack>(*tcp_)) {}
  ~PieceTransport() override { stop(); }

  int rank() const override { return tcp_->rank(); }
  int size() const override { return tcp_->size(); }
  void start(TransportHandler& handler) override {
    handler_ = &handler;
    tcp_->start(*this);
  }
  void stop() override {
    tcp_->stop();
    way_back_->close();
    for (int peer = 0; peer < size(); ++peer) {
      let_go(this->peer(peer));
      carrier_->disconnected(peer);
    }
  }
  void open(int peer) override { tcp_->open(peer); }
  void reset(int peer, const std::string& reason) override { tcp_->reset(peer, reason); }
  void post(std::function<void()> work) override { tcp_->post(std::move(work)); }
  void at(Time when, std::function<void()> work) override { tcp_->at(when, std::move(work)); }
  Time now() const override { return tcp_->now(); }
  std::uint64_t bytes_sent() const override { return tcp_->bytes_sent() + bytes_carried_; }

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
    std::vector<Message> dropped;  // let go outside the lock
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
    std::size_t taken = 0;  // bytes of it that have gone
  };
  struct Coming {
    Piece piece;
    std::optional<Buffer> memory = {};  // once the carrier was asked
    bool ended = false;
  };
  struct Peer {
    // The mutex guards these.
    bool up = false;
    bool failed = false;  // the carrier, between us: for good
    std::deque<Message> waiting;
    // Only the transport's thread touches the rest.
    std::uint64_t connection = 0;                // by number
    std::uint64_t failed_on = 0;                 // which connection
    int failures = 0;                            // of connections, since a piece has gone or come
    bool ready = false;                          // and has said what it has taken
    std::uint64_t life = 0;                      // which transport of the peer's this is
    std::uint64_t begun = 0;                     // pieces, to any life
    Passage under_way;                           // the last of them, if it has not ended
    std::uint64_t taken = 0;                     // of the pieces of the peer's life
    std::deque<std::shared_ptr<Coming>> coming;  // over this connection
    std::vector<std::byte> control;  // the payload of a frame that no handler sees, being received
  };
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  // What waits for it is dropped, and nothing more is taken.
  void let_go(Peer& other) {
    std::deque<Message> dropped;  // outside the lock
    const std::lock_guard lock(mutex_);
    other.up = false;
    dropped.swap(other.waiting);
  }

  // ---------------------------------------------------------------- the sender

  void begin_piece(int rank) {
    Peer& other = peer(rank);
    if (!other.ready || other.under_way) return;
    Piece piece;
    Payload payload;
    {
      const std::lock_guard lock(mutex_);
      if (other.failed || other.waiting.empty()) return;
      Message& message = other.waiting.front();
      const std::size_t length = std::min(Carrier::kPiece, message.payload.bytes.size() - message.taken);
      payload = {message.payload.owner, message.payload.bytes.subspan(message.taken, length)};
      piece = {message.frame, ++other.begun, static_cast<std::uint64_t>(tags_->next()), length, 0};
      piece.frame.offset += message.taken;
      piece.frame.length = 0;
      message.taken += length;
      if (message.taken == message.payload.bytes.size()) other.waiting.pop_front();
    }
    piece.crc = crc32c(payload.bytes);
    try {
      Carrier::Sent sent = carrier_->send(rank, static_cast<int>(piece.tag), payload.bytes);
      other.under_way = std::move(sent.passage);
      piece.note = std::move(sent.note);
    } catch (const std::exception& thrown) {
      return failed(rank, other.connection, one_line(thrown));
    }
    const auto bytes = std::make_shared<const std::vector<std::byte>>(piece.encode());
    tcp_->send(rank, {.type = FrameType::piece}, {bytes, *bytes});
    bytes_carried_ += piece.length;
    when_ended(
        way_back_, other.under_way, payload.owner,
        [this, rank, sequence = piece.sequence, connection = other.connection](const std::string& failure) {
          Peer& other = peer(rank);
          if (sequence == other.begun) other.under_way.reset();
          if (!failure.empty()) return failed(rank, connection, failure);
          other.failures = 0;
          begin_piece(rank);
        });
  }

  // The peer has asked the carrier for our pieces up to this one.
  void peer_has_taken(int rank, std::uint64_t life, std::uint64_t sequence) {
    Peer& other = peer(rank);
    if (other.under_way && life != other.life) {
      other.under_way.reset();  // whether the earlier life has taken it is not known: its thread waits on
    } else if (other.under_way && other.begun > sequence) {
      call_back(other);  // the peer never heard of it
    }
    if (life != other.life) other.taken = 0;
    if (other.life == 0) {
      log_(Level::info, fmt::format("transport: payloads for worker {} go by {}", rank, carrier_->name()));
    }
    other.life = life;
    other.ready = true;
    begin_piece(rank);
  }

  static void call_back(Peer& other) {
    try {
      other.under_way->call_back();  // its thread sees the end
    } catch (const std::exception&) {
      other.under_way.reset();  // a carrier that cannot: its thread waits on
    }
  }

  // Nothing is under way on this connection yet.
  void peer_takes_no_more(int rank) {
    Peer& other = peer(rank);
    const std::lock_guard lock(mutex_);
    other.failed = true;
    for (Message& message : other.waiting) tcp_->send(rank, message.frame, std::move(message.payload));
    other.waiting.clear();
  }
  void failed(int rank, std::uint64_t connection, const std::string& reason) {
    Peer& other = peer(rank);
    if (carrier_->renews()) {
      if (connection != other.connection) return begin_piece(rank);  // it is whole again
      if (std::exchange(other.failed_on, connection) == connection) return;
    }
    if (!carrier_->renews() || ++other.failures == kMostFailures) {
      {
        const std::lock_guard lock(mutex_);
        if (std::exchange(other.failed, true)) return;
      }
      log_(Level::warning,
           fmt::format("transport: {} fails with worker {} ({}): from now on its payloads go over TCP",
                       carrier_->name(), rank, reason));
    }
    tcp_->reset(rank,
                fmt::format("worker {}: a payload was lost with {} ({})", rank, carrier_->name(), reason));
  }

  // ---------------------------------------------------------------- the receiver

  // False: it says nothing that could be.
  bool piece_comes(int rank, std::span<const std::byte> bytes) {
    const auto piece = Piece::decode(bytes);
    auto& coming = peer(rank).coming;
    // Whoever announces one after the other is never ahead by more than what was asked for.
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
      Passage passage;
      try {
        passage =
            carrier_->receive(rank, static_cast<int>(coming->piece.tag), *coming->memory, coming->piece.note);
      } catch (const std::exception& thrown) {
        return failed(rank, other.connection, one_line(thrown));
      }
      when_ended(way_back_, std::move(passage), coming,
                 [this, rank, coming, connection = other.connection](const std::string& failure) {
                   coming->ended = true;
                   if (!failure.empty()) return failed(rank, connection, failure);
                   if (peer(rank).connection != connection) return;
                   peer(rank).failures = 0;
                   deliver(rank);
                 });
    }
  }

  // In the order in which they were sent, whatever thread was the first to see its end.
  void deliver(int rank) {
    auto& coming = peer(rank).coming;
    while (!coming.empty() && coming.front()->ended) {
      const std::shared_ptr<Coming> first = std::move(coming.front());
      coming.pop_front();
      deliver(rank, first->piece, *first->memory);
    }
    ask(rank);
  }

  void deliver(int rank, const Piece& piece, std::span<const std::byte> whole) {
    const bool intact = crc32c(whole) == piece.crc;
    for (std::size_t at = 0; at < whole.size(); at += Frame::kMaxPayload) {
      const auto chunk = whole.subspan(at, std::min(Frame::kMaxPayload, whole.size() - at));
      Frame frame = piece.frame;
      frame.offset += at;
      frame.length = static_cast<std::uint32_t>(chunk.size());
      const auto place = handler_->place(rank, frame);
      const bool wanted = place.size() == chunk.size();
      if (wanted) std::memcpy(place.data(), chunk.data(), chunk.size());
      handler_->received(rank, frame, wanted ? place : std::span<std::byte>{}, wanted && intact);
    }
  }

  // ---------------------------------------------------------------- tcp's handler

  void connected(int rank) override {
    Peer& other = peer(rank);
    ++other.connection;
    {
      const std::lock_guard lock(mutex_);
      other.up = true;
    }
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
    carrier_->disconnected(rank);
    handler_->disconnected(rank, reason);
  }
  void lost(int rank, const std::string& reason) override { handler_->lost(rank, reason); }

  std::span<std::byte> place(int rank, const Frame& frame) override {
    if (frame.type != FrameType::piece) return handler_->place(rank, frame);
    if (frame.length > Outbox::kMaxControl || frame.offset != 0) return {};
    peer(rank).control.resize(frame.length);
    return peer(rank).control;
  }
  void received(int rank, const Frame& frame, std::span<const std::byte> payload, bool intact) override {
    if (frame.type == FrameType::taken) {
      return frame.step == 0 ? peer_has_taken(rank, frame.round, frame.value) : peer_takes_no_more(rank);
    }
    if (frame.type != FrameType::piece) return handler_->received(rank, frame, payload, intact);
    if (!intact || !piece_comes(rank, payload)) tcp_->reset(rank, "what it said of a piece is damaged");
  }

  const std::shared_ptr<Carrier> carrier_;
  const std::shared_ptr<Tags> tags_;
  const std::uint64_t life_;
  const Log log_;
  TransportHandler* handler_ = nullptr;
  std::atomic<std::uint64_t> bytes_carried_ = 0;

  std::mutex mutex_;
  std::vector<Peer> peers_;
  std::unique_ptr<Transport> tcp_;
  const std::shared_ptr<WayBack> way_back_;
};

}  // namespace
}  // namespace pieces

std::unique_ptr<Transport> make_piece_transport(std::shared_ptr<Carrier> carrier, std::shared_ptr<Tags> tags,
                                                const World& world, const std::string& channel) {
  return std::make_unique<pieces::PieceTransport>(std::move(carrier), std::move(tags), world, channel);
}

}  // namespace starling
