#include "starling/transport/local/local.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/transport/local/dispatcher.h"
#include "starling/transport/outbox.h"

namespace starling {
namespace {

constexpr auto kRedial = std::chrono::milliseconds(10);  // after reset()

}  // namespace

// All the state. Only the dispatcher's thread touches it.
//
// Everything that runs for an endpoint goes through run_at(), which holds it back while the
// endpoint is paused and drops it when the endpoint is dead. Everything in flight on a connection
// carries that connection's number, and is dropped once the connection is gone.
class LocalHub::Core {
 public:
  Core(int size, Timeouts timeouts, LocalNetwork network)
      : size_(size),
        timeouts_(timeouts),
        network_(std::move(network)),
        nodes_(static_cast<std::size_t>(size)),
        links_(static_cast<std::size_t>(size * size)),
        dispatcher_(network_.time) {
    if (!dispatcher_) dispatcher_ = std::make_shared<ClockDispatcher>();
    for (auto& link : links_) link = std::make_unique<Link>();
  }

  int size() const { return size_; }
  Dispatcher& dispatcher() { return *dispatcher_; }

  void check_rank(int rank) const {
    if (rank < 0 || rank >= size_)
      throw UsageError(
          fmt::format("local transport: rank {} does not exist, there are ranks 0 to {}", rank, size_ - 1));
  }

  void check_peer(int rank, int peer) const {
    check_rank(rank);
    check_rank(peer);
    if (rank == peer) throw UsageError(fmt::format("local transport: rank {} has no edge to itself", rank));
  }

  // --- called on any thread ---

  // Starts a new life of this rank, and returns its number.
  std::uint64_t enlist(int rank) {
    const std::lock_guard lock(lives_mutex_);
    auto& life = lives_[rank];
    if (life.running) throw UsageError(fmt::format("local transport: rank {} already has an endpoint", rank));
    life.running = true;
    return ++life.number;
  }
  void dismiss(int rank) {
    const std::lock_guard lock(lives_mutex_);
    lives_[rank].running = false;
  }
  // The number of the connection from `from` to `to`; 0 if there is none.
  std::uint64_t connection(int from, int to) const { return link(from, to).connection.load(); }
  std::uint64_t bytes_sent(int rank) const {
    return nodes_[static_cast<std::size_t>(rank)].bytes_sent.load();
  }
  std::uint64_t payload_sent(int rank) const {
    return nodes_[static_cast<std::size_t>(rank)].payload_sent.load();
  }

  // --- called on the dispatcher's thread ---

  void begin(int rank, std::uint64_t life, TransportHandler* handler) {
    Node& me = node(rank);
    me.life = life;
    me.handler = handler;
    me.paused = false;
    me.bytes_sent = me.payload_sent = 0;
    for (int peer = 0; peer < size_; ++peer) {
      Link& out = link(rank, peer);
      out.opened = out.up = out.lost = false;
    }
  }

  // The endpoint is gone for good. The others learn it at once, after what was on its way to them.
  // With `flush`, queued frames go out too.
  void end(int rank, bool flush, const std::string& reason) {
    Node& me = node(rank);
    if (me.handler == nullptr) return;
    me.handler = nullptr;
    me.waiting.clear();
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank) continue;
      Link& mine = link(rank, peer);
      while (flush && !mine.outbox.empty()) put_on_the_wire(rank, peer);
      mine.stop_sending();
      link(peer, rank).stop_sending();
      link(peer, rank).arriving = 0;
      dispatcher_->at(mine.last_arrival, [=, this] {
        run_at(peer, [=, this](TransportHandler& handler) { ended(rank, peer, reason, handler); });
      });
    }
  }

  void open(int rank, int peer) {
    Link& out = link(rank, peer);
    if (out.opened || node(rank).handler == nullptr) return;
    out.opened = true;
    connect(rank, peer);
    if (!out.up) lose_after(timeouts_.meet, rank, peer, "it did not come");
  }

  void disconnect(int a, int b, const std::string& reason_at_a, const std::string& reason_at_b) {
    if (!link(a, b).up || node(a).handler == nullptr || node(b).handler == nullptr) return;
    for (const auto& [me, peer, reason] : {std::tuple(a, b, reason_at_a), std::tuple(b, a, reason_at_b)}) {
      Link& out = link(me, peer);
      out.up = false;
      out.stop_sending();
      out.arriving = 0;
      run_at(me, [peer = peer, reason = reason](TransportHandler& handler) {
        handler.disconnected(peer, reason);
      });
      lose_after(timeouts_.silent, me, peer, "it did not come back");
    }
  }

  void reset(int rank, int peer, const std::string& reason) {
    disconnect(rank, peer, reason, "it closed the connection");
    dispatcher_->at(dispatcher_->now() + kRedial, [=, this] { connect(rank, peer); });
  }

  void send(int from, int to, std::uint64_t connection, const Frame& frame, Payload payload) {
    Link& out = link(from, to);
    if (out.connection != connection) return;
    out.outbox.push(frame, std::move(payload));
    pump_later(from, to);
  }

  void cancel(int from, int to, FrameType type, std::uint64_t round, std::uint32_t block) {
    link(from, to).outbox.cancel(type, round, block);
  }

  // Runs `work` for this endpoint: now, or after it is resumed. Not at all once it is dead.
  template <typename Work>
  void run_at(int rank, Work work) {
    Node& me = node(rank);
    if (me.handler == nullptr) return;
    if (me.paused) {
      me.waiting.push_back([=, this] { run_at(rank, work); });
    } else {
      work(*me.handler);
    }
  }
  bool lives(int rank, std::uint64_t life) const {
    return node(rank).handler != nullptr && node(rank).life == life;
  }

  // --- faults ---

  void set_delay(int from, int to, Duration latency) { link(from, to).latency = latency; }

  void sever(int a, int b) {
    link(a, b).severed = link(b, a).severed = true;
    disconnect(a, b, "the connection was severed", "the connection was severed");
  }

  void mend(int a, int b) {
    link(a, b).severed = link(b, a).severed = false;
    connect(a, b);
  }

  void pause(int rank) { node(rank).paused = true; }

  void resume(int rank) {
    Node& me = node(rank);
    me.paused = false;
    while (!me.paused && !me.waiting.empty()) {
      const auto work = std::move(me.waiting.front());
      me.waiting.pop_front();
      work();
    }
    for (int peer = 0; peer < size_; ++peer) {
      if (!link(rank, peer).outbox.empty()) pump_later(rank, peer);
    }
  }

  void corrupt_next(int from, int to) { link(from, to).corrupt = true; }

 private:
  struct Node {
    TransportHandler* handler = nullptr;  // none: not begun, or dead
    std::uint64_t life = 0;
    bool paused = false;
    std::deque<std::function<void()>> waiting;  // while paused
    std::atomic<std::uint64_t> bytes_sent = 0, payload_sent = 0;
  };
  // One direction, and the sender's knowledge of the peer.
  struct Link {
    bool opened = false;
    bool up = false;
    bool lost = false;     // and the handler knows it
    bool severed = false;  // by the test
    bool pumping = false;  // a pump() is scheduled
    bool corrupt = false;
    std::uint64_t times_up = 0;
    // Number of the connection for outgoing frames; 0: none.
    std::atomic<std::uint64_t> connection = 0;
    std::uint64_t arriving = 0;  // number of the connection whose frames still arrive
    Duration latency{};
    Time free{};  // when it can take more
    Time last_arrival{};
    Outbox outbox;

    void stop_sending() {
      connection = 0;
      outbox.clear();
    }
  };
  struct Life {
    bool running = false;
    std::uint64_t number = 0;
  };

  Node& node(int rank) { return nodes_[static_cast<std::size_t>(rank)]; }
  const Node& node(int rank) const { return nodes_[static_cast<std::size_t>(rank)]; }
  Link& link(int from, int to) { return *links_[static_cast<std::size_t>(from * size_ + to)]; }
  const Link& link(int from, int to) const { return *links_[static_cast<std::size_t>(from * size_ + to)]; }

  void connect(int a, int b) {
    if (node(a).handler == nullptr || node(b).handler == nullptr) return;
    if (link(a, b).severed || link(a, b).up || link(b, a).up || !link(a, b).opened || !link(b, a).opened)
      return;
    const std::uint64_t number = ++connections_;
    for (const auto& [me, peer] : {std::pair(a, b), std::pair(b, a)}) {
      Link& out = link(me, peer);
      out.up = true;
      ++out.times_up;
      out.lost = false;
      out.last_arrival = {};
      out.connection = out.arriving = number;
    }
    for (const auto& [me, peer] : {std::pair(a, b), std::pair(b, a)}) {
      run_at(me, [peer = peer](TransportHandler& handler) { handler.connected(peer); });
    }
  }

  // Tells `peer` that `rank` is gone.
  void ended(int rank, int peer, const std::string& reason, TransportHandler& handler) {
    Link& theirs = link(peer, rank);
    const bool was_up = std::exchange(theirs.up, false);
    link(rank, peer).arriving = 0;
    if (!theirs.opened) return;
    if (was_up) handler.disconnected(rank, reason);
    if (!std::exchange(theirs.lost, true)) handler.lost(rank, reason);
    handler.ended(rank);
    connect(rank, peer);  // if it was started again meanwhile
  }

  void lose_after(Duration patience, int rank, int peer, const std::string& reason) {
    const std::uint64_t life = node(rank).life;
    const std::uint64_t times_up = link(rank, peer).times_up;
    dispatcher_->at(dispatcher_->now() + patience, [=, this] {
      Link& out = link(rank, peer);
      if (!lives(rank, life) || out.times_up != times_up || out.up || out.lost) return;
      out.lost = true;
      run_at(rank, [=](TransportHandler& handler) {
        handler.lost(peer, fmt::format("worker {}: {} within {:.1f} s", peer, reason, seconds(patience)));
      });
    });
  }

  void pump_later(int from, int to) {
    if (std::exchange(link(from, to).pumping, true)) return;
    dispatcher_->at(link(from, to).free, [=, this] { pump(from, to); });
  }

  // Sends one chunk at a time, so that a control frame can overtake the chunks behind it.
  void pump(int from, int to) {
    Link& out = link(from, to);
    out.pumping = false;
    if (out.outbox.empty() || node(from).paused) return;
    put_on_the_wire(from, to);
    if (!out.outbox.empty()) pump_later(from, to);
  }

  void put_on_the_wire(int from, int to) {
    Link& out = link(from, to);
    const auto chunk = std::make_shared<Outbox::Chunk>(out.outbox.take());
    chunk->frame.payload_crc = crc32c(chunk->payload.bytes);
    node(from).bytes_sent += Frame::kBytes + chunk->frame.length;
    if (carries_values(chunk->frame.type)) node(from).payload_sent += chunk->frame.length;
    const bool corrupt = chunk->frame.length > 0 && std::exchange(out.corrupt, false);
    const Time now = dispatcher_->now();
    const Crossing crossing = network_.cross
                                  ? network_.cross(from, to, Frame::kBytes + chunk->frame.length, now)
                                  : Crossing{now, now};
    out.free = crossing.free;
    out.last_arrival = std::max(out.last_arrival, crossing.there + out.latency);
    dispatcher_->at(out.last_arrival, [=, this, connection = out.arriving] {
      run_at(to, [=, this](TransportHandler& handler) {
        if (link(from, to).arriving == connection) deliver(from, *chunk, corrupt, handler);
      });
    });
  }

  static void deliver(int from, const Outbox::Chunk& chunk, bool corrupt, TransportHandler& handler) {
    if (chunk.frame.length == 0) {
      handler.received(from, chunk.frame, {}, true);
      return;
    }
    const auto place = handler.place(from, chunk.frame);
    if (place.size() != chunk.frame.length) {
      handler.received(from, chunk.frame, {}, false);
      return;
    }
    std::memcpy(place.data(), chunk.payload.bytes.data(), place.size());
    if (corrupt) place.front() ^= std::byte{1};
    handler.received(from, chunk.frame, place, crc32c(place) == chunk.frame.payload_crc);
  }

  const int size_;
  const Timeouts timeouts_;
  const LocalNetwork network_;
  std::mutex lives_mutex_;
  std::map<int, Life> lives_;
  std::vector<Node> nodes_;
  std::vector<std::unique_ptr<Link>> links_;
  std::uint64_t connections_ = 0;           // made so far
  std::shared_ptr<Dispatcher> dispatcher_;  // last: its thread ends before the other members go
};

class LocalHub::Endpoint final : public Transport {
 public:
  Endpoint(std::shared_ptr<Core> core, int rank)
      : core_(std::move(core)), rank_(rank), life_(core_->enlist(rank)) {}
  ~Endpoint() override { stop(); }

  int rank() const override { return rank_; }
  int size() const override { return core_->size(); }

  void start(TransportHandler& handler) override {
    run([this, handler = &handler] { core_->begin(rank_, life_, handler); });
  }

  void stop() override {
    if (std::exchange(stopped_, true)) return;
    core_->dispatcher().run(
        [this] { core_->end(rank_, true, fmt::format("worker {}: it has stopped", rank_)); });
    core_->dismiss(rank_);
  }

  void open(int peer) override {
    core_->check_peer(rank_, peer);
    core_->dispatcher().post([core = core_.get(), rank = rank_, peer] { core->open(rank, peer); });
  }

  void reset(int peer, const std::string& reason) override {
    core_->check_peer(rank_, peer);
    core_->dispatcher().post(
        [core = core_.get(), rank = rank_, peer, reason] { core->reset(rank, peer, reason); });
  }

  void send(int peer, Frame frame, Payload payload) override {
    core_->check_peer(rank_, peer);
    Outbox::check(frame, payload);
    const std::uint64_t connection = core_->connection(rank_, peer);
    if (connection == 0) return;
    run([core = core_.get(), rank = rank_, peer, connection, frame, payload = std::move(payload)] {
      core->send(rank, peer, connection, frame, payload);
    });
  }

  void cancel(int peer, FrameType type, std::uint64_t round, std::uint32_t block) override {
    core_->check_peer(rank_, peer);
    run([core = core_.get(), rank = rank_, peer, type, round, block] {
      core->cancel(rank, peer, type, round, block);
    });
  }

  void post(std::function<void()> work) override { at(now(), std::move(work)); }

  void at(Time when, std::function<void()> work) override {
    core_->dispatcher().at(when, [core = core_.get(), rank = rank_, life = life_, work = std::move(work)] {
      if (core->lives(rank, life)) core->run_at(rank, [work](TransportHandler&) { work(); });
    });
  }

  Time now() const override { return core_->dispatcher().now(); }
  std::unique_ptr<Condition> condition() const override { return core_->dispatcher().condition(); }
  std::uint64_t bytes_sent() const override { return core_->bytes_sent(rank_); }
  std::uint64_t payload_sent() const override { return core_->payload_sent(rank_); }

 private:
  // Runs at once on the dispatcher's thread, which keeps the order of its calls. On other threads
  // it posts to the dispatcher's thread.
  template <typename Work>
  void run(Work work) {
    if (core_->dispatcher().on_thread()) {
      work();
    } else {
      core_->dispatcher().post(std::move(work));
    }
  }

  const std::shared_ptr<Core> core_;
  const int rank_;
  const std::uint64_t life_;
  bool stopped_ = false;
};

LocalHub::LocalHub(int size, Timeouts timeouts, LocalNetwork network)
    : core_(std::make_shared<Core>(size, timeouts, std::move(network))) {}

std::unique_ptr<Transport> LocalHub::endpoint(int rank) {
  core_->check_rank(rank);
  return std::make_unique<Endpoint>(core_, rank);
}

void LocalHub::delay(int from, int to, Duration latency) {
  core_->check_peer(from, to);
  core_->dispatcher().post([=, core = core_.get()] { core->set_delay(from, to, latency); });
}

void LocalHub::sever(int a, int b) {
  core_->check_peer(a, b);
  core_->dispatcher().post([=, core = core_.get()] { core->sever(a, b); });
}

void LocalHub::mend(int a, int b) {
  core_->check_peer(a, b);
  core_->dispatcher().post([=, core = core_.get()] { core->mend(a, b); });
}

void LocalHub::kill(int rank) {
  core_->check_rank(rank);
  core_->dispatcher().post([=, core = core_.get()] {
    core->end(rank, false, fmt::format("worker {}: its process has ended", rank));
  });
}

void LocalHub::pause(int rank) {
  core_->check_rank(rank);
  core_->dispatcher().post([=, core = core_.get()] { core->pause(rank); });
}

void LocalHub::resume(int rank) {
  core_->check_rank(rank);
  core_->dispatcher().post([=, core = core_.get()] { core->resume(rank); });
}

void LocalHub::corrupt_next(int from, int to) {
  core_->check_peer(from, to);
  core_->dispatcher().post([=, core = core_.get()] { core->corrupt_next(from, to); });
}

std::function<std::unique_ptr<Transport>(const World&, const std::string& channel)> local_transports(
    LocalNetwork network) {
  struct Hubs {
    std::mutex mutex;
    std::map<std::string, LocalHub> by_channel;
  };
  return [hubs = std::make_shared<Hubs>(), network = std::move(network)](const World& world,
                                                                         const std::string& channel) {
    const std::lock_guard lock(hubs->mutex);
    const auto hub = hubs->by_channel.try_emplace(channel, world.size, world.timeouts, network).first;
    return hub->second.endpoint(world.rank);
  };
}

}  // namespace starling
