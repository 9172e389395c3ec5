#include "starling/transport/mapped/mapped.h"

#include <atomic>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "starling/core/error.h"
#include "starling/core/with_lock.h"
#include "starling/transport/mapped/arena.h"
#include "starling/transport/mapped/hand_over.h"
#include "starling/transport/mapped/lies_at.h"
#include "starling/transport/outbox.h"

namespace starling {
namespace mapped {
namespace {

constexpr std::size_t kMostLent = 8;
constexpr std::size_t kMostRegions = 256;

// The maker's end of a tie. The transport's mutex guards it.
struct Lending {
  using Kind = std::pair<FrameType, std::uint32_t>;  // type and block
  struct Lease {
    Kind kind;
    std::shared_ptr<const void> owner;
  };
  Lending(Descriptor tie, std::uint64_t invitation) : tie(std::move(tie)), invitation(invitation) {}

  Descriptor tie;
  const std::uint64_t invitation;
  std::size_t handed = 0;          // regions
  std::set<std::uint64_t> mapped;  // regions that the reader has mapped
  std::map<std::uint64_t, Lease> leases;
  std::map<Kind, std::size_t> lent;
  bool ended = false;
};

// The reader's end of a tie. It lives as long as the connection, and as long as anything that was
// read through it.
class Borrowing {
 public:
  Borrowing(Descriptor tie, std::uint64_t invitation) : invitation(invitation), tie_(std::move(tie)) {}
  ~Borrowing() { end_tie(tie_); }
  Borrowing(const Borrowing&) = delete;

  const Descriptor& tie() const { return tie_; }
  // On any thread.
  void release(std::uint64_t lease) {
    const std::lock_guard lock(mutex_);
    unsaid_.push_back(lease);
    // If the tie is full, the maker has many messages to read already, so the rest can wait.
    while (!unsaid_.empty() && say_released(tie_, unsaid_.back())) unsaid_.pop_back();
  }

  const std::uint64_t invitation;
  std::map<std::uint64_t, std::shared_ptr<const Mapping>> regions;  // the transport's thread only

 private:
  Descriptor tie_;
  std::mutex mutex_;
  std::vector<std::uint64_t> unsaid_;
};

// The payload that is being read.
struct Reading {
  Reading(std::shared_ptr<Borrowing> from, std::shared_ptr<const Mapping> memory, std::uint64_t lease)
      : from(std::move(from)), memory(std::move(memory)), lease(lease) {}
  ~Reading() { from->release(lease); }
  Reading(const Reading&) = delete;

  const std::shared_ptr<Borrowing> from;
  const std::shared_ptr<const Mapping> memory;
  const std::uint64_t lease;
};

class MappedTransport final : public Transport, private TransportHandler {
 public:
  MappedTransport(const MappedOptions& options, const World& world, const std::string& channel)
      : user_(options.user),
        log_(world.log),
        arena_(options.region),
        pool_([this](std::size_t size) { return make(size); }),
        peers_(static_cast<std::size_t>(world.size)),
        tcp_(make_tcp_transport_with(options.tcp, world, channel)) {
    try {
      door_.emplace(options.user);
    } catch (const Error& none) {
      log_(Level::info, fmt::format("mapped transport: {}: data from peers comes over TCP", none.what()));
    }
    arena_.add();  // peers have it before the first block is written
  }
  ~MappedTransport() override { stop(); }

  int rank() const override { return tcp_->rank(); }
  int size() const override { return tcp_->size(); }
  void start(TransportHandler& handler) override {
    handler_ = &handler;
    tcp_->start(*this);
  }
  void stop() override { tcp_->stop(); }
  void open(int peer) override { tcp_->open(peer); }
  void reset(int peer, const std::string& reason) override { tcp_->reset(peer, reason); }
  void cancel(int peer, FrameType type, std::uint64_t round, std::uint32_t block) override {
    tcp_->cancel(peer, type, round, block);
  }
  void post(std::function<void()> work) override { tcp_->post(std::move(work)); }
  void at(Time when, std::function<void()> work) override { tcp_->at(when, std::move(work)); }
  Time now() const override { return tcp_->now(); }
  std::uint64_t bytes_sent() const override { return tcp_->bytes_sent() + bytes_in_place_; }
  std::uint64_t payload_sent() const override { return tcp_->payload_sent() + bytes_in_place_; }
  std::uint64_t bytes_in_place() const override { return bytes_in_place_; }

  std::shared_ptr<Buffer> buffer(std::size_t size) override {
    if (size <= Outbox::kMaxControl) return Transport::buffer(size);  // it is sent with its frame
    collect();
    return pool_.take(size);
  }

  void send(int peer, Frame frame, Payload payload) override {
    if (const auto said = lend(peer, frame, payload)) {
      const auto bytes = std::make_shared<const std::vector<std::byte>>(said->encode());
      bytes_in_place_ += payload.bytes.size();
      tcp_->send(peer, {.type = FrameType::lies_at, .round = frame.round, .block = frame.block},
                 {bytes, *bytes});
    } else {
      tcp_->send(peer, frame, std::move(payload));
    }
  }

 private:
  struct Peer {
    // Only the transport's thread touches these.
    std::uint64_t invitation = 0;  // number of the last one
    Nonce nonce{};                 // told to the peer
    std::shared_ptr<Borrowing> borrowing;
    std::vector<std::byte> control;   // the payload being received of a frame that no handler sees
    std::optional<std::string> said;  // the last log message about the way of its payloads
    // The mutex guards this.
    std::shared_ptr<Lending> lending;
  };
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }

  // ---------------------------------------------------------------- the maker

  std::unique_ptr<Buffer> make(std::size_t size) {
    const std::size_t before = arena_.regions();
    auto buffer = arena_.make(size);
    if (!buffer) {
      if (!without_memory_.exchange(true))
        log_(Level::warning,
             fmt::format("mapped transport: no shared memory ({}): blocks go over TCP", arena_.trouble()));
      return std::make_unique<Buffer>(size);
    }
    if (arena_.regions() != before) {
      tcp_->post([this] {
        for (int rank = 0; rank < size_of_world(); ++rank) hand_over(rank);
      });
    }
    return buffer;
  }
  int size_of_world() const { return static_cast<int>(peers_.size()); }

  // The message of this frame in place of its payload; nothing if the payload must be sent.
  std::optional<LiesAt> lend(int rank, Frame frame, const Payload& payload) {
    const std::size_t size = payload.bytes.size();
    if (size <= Outbox::kMaxControl || size > std::numeric_limits<std::uint32_t>::max()) return std::nullopt;
    if (rank < 0 || rank >= size_of_world() || frame.offset != 0) return std::nullopt;
    if (frame.total != 0 && frame.total != size) return std::nullopt;
    const auto place = arena_.find(payload.bytes);
    if (!place) return std::nullopt;
    frame.total = size;
    std::vector<std::shared_ptr<const void>> gone;  // released outside the lock
    const std::lock_guard lock(mutex_);
    const auto& lending = peer(rank).lending;
    if (!lending || !lending->mapped.contains(place->region)) return std::nullopt;
    const Lending::Kind kind{frame.type, frame.block};
    if (lending->lent[kind] >= kMostLent) collect(*lending, gone);
    if (lending->ended || lending->lent[kind] >= kMostLent) return std::nullopt;
    ++lending->lent[kind];
    lending->leases[++leases_] = {kind, payload.owner};
    return LiesAt{frame, lending->invitation, leases_, place->region, place->offset};
  }

  // Memory that readers have released may be written to again.
  void collect() {
    std::vector<std::shared_ptr<const void>> gone;
    const std::lock_guard lock(mutex_);
    for (const Peer& each : peers_) {
      if (each.lending) collect(*each.lending, gone);
    }
    for (const auto& lending : retired_) collect(*lending, gone);
    std::erase_if(retired_, [](const auto& lending) { return lending->leases.empty(); });
  }

  static void collect(Lending& lending, std::vector<std::shared_ptr<const void>>& gone) {
    while (!lending.ended && !lending.leases.empty()) {
      const auto heard = hear_released(lending.tie);
      if (const auto* lease = std::get_if<std::uint64_t>(&heard)) {
        const auto found = lending.leases.find(*lease);
        if (found == lending.leases.end()) continue;
        --lending.lent[found->second.kind];
        gone.push_back(std::move(found->second.owner));
        lending.leases.erase(found);
      } else if (std::get<Quiet>(heard) == Quiet::ended) {
        for (auto& [number, lease_of_it] : lending.leases) gone.push_back(std::move(lease_of_it.owner));
        lending.leases.clear();
        lending.ended = true;
      } else {
        return;
      }
    }
  }

  void invited(int rank, std::uint64_t invitation, std::span<const std::byte> payload) {
    Invitation words;
    std::memcpy(words.door.data(), payload.data(), words.door.size());
    std::memcpy(words.nonce.data(), payload.data() + words.door.size(), words.nonce.size());
    std::string why;
    auto tie = call(words, user_, why);
    if (!tie)
      return say(rank, fmt::format("worker {} takes no memory from this one ({}): its blocks go over TCP",
                                   rank, why));
    retire(rank);
    with_lock(mutex_, [&] { peer(rank).lending = std::make_shared<Lending>(std::move(*tie), invitation); });
    hand_over(rank);
  }

  // Hands over all regions that this peer does not have yet.
  void hand_over(int rank) {
    const auto lending = with_lock(mutex_, [&] { return peer(rank).lending; });
    if (!lending) return;
    for (; lending->handed < arena_.regions(); ++lending->handed) {
      const auto number = static_cast<std::uint32_t>(lending->handed);
      if (!give_region(lending->tie, number, arena_.descriptor(number))) {
        return say(
            rank,
            fmt::format("worker {} does not fetch this worker's memory: blocks in it go over TCP", rank));
      }
      tcp_->send(rank, {.type = FrameType::handed, .block = number, .value = lending->invitation});
    }
  }

  void has_mapped(int rank, const Frame& frame) {
    {
      const std::lock_guard lock(mutex_);
      const auto& lending = peer(rank).lending;
      if (!lending || frame.value != lending->invitation || frame.block >= lending->handed) return;
      if (frame.step != 0) lending->mapped.insert(frame.block);
    }
    say(rank, frame.step != 0
                  ? fmt::format("worker {} reads this worker's blocks in shared memory", rank)
                  : fmt::format("worker {} cannot map this worker's memory: its blocks go over TCP", rank));
  }

  // The connection is gone; payloads that the peer may still read stay lent.
  void retire(int rank) {
    const std::lock_guard lock(mutex_);
    if (auto lending = std::exchange(peer(rank).lending, nullptr); lending && !lending->leases.empty())
      retired_.push_back(std::move(lending));
  }

  void say(int rank, const std::string& line) {
    if (peer(rank).said == line) return;
    peer(rank).said = line;
    log_(Level::info, "mapped transport: " + line);
  }

  // ---------------------------------------------------------------- the reader

  void invite(int rank) {
    if (!door_) return;
    Peer& other = peer(rank);
    other.nonce = tcp::Challenge::fresh().nonce;
    auto bytes = std::make_shared<std::vector<std::byte>>();
    bytes->insert(bytes->end(), door_->name().begin(), door_->name().end());
    bytes->insert(bytes->end(), other.nonce.begin(), other.nonce.end());
    tcp_->send(rank, {.type = FrameType::invitation, .value = ++other.invitation}, {bytes, *bytes});
  }

  void look_at_the_door() {
    for (auto& [tie, nonce] : door_->callers()) {
      for (Peer& other : peers_) {
        if (other.invitation == 0 || other.borrowing || !tcp::same(other.nonce, nonce)) continue;
        other.borrowing = std::make_shared<Borrowing>(std::move(tie), other.invitation);
        break;
      }
    }
  }

  void was_handed(int rank, const Frame& frame) {
    Peer& other = peer(rank);
    if (!door_ || frame.value != other.invitation) return;
    look_at_the_door();
    if (!other.borrowing) return;
    auto& regions = other.borrowing->regions;
    while (auto region = take_region(other.borrowing->tie())) {
      std::string why = "it has too many regions";
      if (regions.size() < kMostRegions && !regions.contains(region->number)) {
        if (auto mapping = Mapping::of(std::move(region->memory), why))
          regions.emplace(region->number, std::move(mapping));
      }
      const bool here = regions.contains(region->number);
      if (!here)
        log_(Level::warning,
             fmt::format("mapped transport: the memory of worker {} is not mapped: {}", rank, why));
      tcp_->send(rank, {.type = FrameType::mapped,
                        .block = region->number,
                        .step = here ? 1U : 0U,
                        .value = other.borrowing->invitation});
    }
  }

  // False if the message makes no sense.
  bool payload_lies(int rank, std::span<const std::byte> bytes) {
    const auto said = LiesAt::decode(bytes);
    if (!said) return false;
    const auto borrowing = peer(rank).borrowing;
    // The message is of another connection.
    if (!borrowing || said->invitation != borrowing->invitation) return true;
    Frame frame = said->frame;
    frame.offset = 0;
    frame.length = static_cast<std::uint32_t>(frame.total);
    const auto found = borrowing->regions.find(said->region);
    const std::span<const std::byte> memory =
        found == borrowing->regions.end() ? std::span<const std::byte>{} : found->second->bytes();
    const auto place_of_it = said->in(memory);
    if (!place_of_it) {
      log_(Level::warning,
           fmt::format(
               "mapped transport: worker {} names {} bytes at {} of its region {}, which are outside of it",
               rank, frame.total, said->offset, said->region));
      frame.length = 0;
      handler_->received(rank, frame, {}, false);
      return true;
    }
    const Payload payload{std::make_shared<const Reading>(borrowing, found->second, said->lease),
                          *place_of_it};
    if (handler_->received_in_place(rank, frame, payload)) return true;
    deliver_in_chunks(*handler_, rank, frame, payload.bytes, /*intact=*/true);
    return true;
  }

  // ---------------------------------------------------------------- tcp's handler

  void connected(int rank) override {
    retire(rank);
    peer(rank).borrowing = nullptr;
    invite(rank);
    handler_->connected(rank);
  }
  void disconnected(int rank, const std::string& reason) override {
    retire(rank);
    peer(rank).borrowing = nullptr;
    handler_->disconnected(rank, reason);
  }
  void lost(int rank, const std::string& reason) override { handler_->lost(rank, reason); }
  void ended(int rank) override { handler_->ended(rank); }

  static std::optional<std::size_t> own_payload(FrameType type) {
    if (type == FrameType::invitation) return Invitation::kBytes;
    if (type == FrameType::lies_at) return LiesAt::kBytes;
    return std::nullopt;
  }
  std::span<std::byte> place(int rank, const Frame& frame) override {
    const auto own = own_payload(frame.type);
    if (!own) return handler_->place(rank, frame);
    if (frame.length != *own || frame.offset != 0) return {};
    peer(rank).control.resize(*own);
    return peer(rank).control;
  }
  void received(int rank, const Frame& frame, std::span<const std::byte> payload, bool intact) override {
    switch (frame.type) {
      case FrameType::invitation:
        if (intact && !payload.empty()) invited(rank, frame.value, payload);
        return;
      case FrameType::lies_at:
        if (intact && !payload.empty() && payload_lies(rank, payload)) return;
        // Nobody knows which payload is missing, as with a damaged header.
        return tcp_->reset(rank, "its message about the place of a payload is damaged");
      case FrameType::handed:
        return was_handed(rank, frame);
      case FrameType::mapped:
        return has_mapped(rank, frame);
      default:
        return handler_->received(rank, frame, payload, intact);
    }
  }

  const uid_t user_;
  const Log log_;
  std::optional<Door> door_;  // none: the system refuses one
  Arena arena_;
  BufferPool pool_;
  TransportHandler* handler_ = nullptr;
  std::atomic<std::uint64_t> bytes_in_place_ = 0;
  std::atomic<bool> without_memory_ = false;

  std::mutex mutex_;  // guards lending
  std::vector<Peer> peers_;
  std::vector<std::shared_ptr<Lending>> retired_;  // of broken connections
  std::uint64_t leases_ = 0;                       // given so far

  std::unique_ptr<Transport> tcp_;  // last: its thread ends before anything else goes
};

}  // namespace
}  // namespace mapped

MappedOptions::MappedOptions() : user(geteuid()) {}

std::unique_ptr<Transport> make_mapped_transport(const World& world, const std::string& channel) {
  return make_mapped_transport_with({}, world, channel);
}

std::unique_ptr<Transport> make_mapped_transport_with(const MappedOptions& options, const World& world,
                                                      const std::string& channel) {
  return std::make_unique<mapped::MappedTransport>(options, world, channel);
}

}  // namespace starling
