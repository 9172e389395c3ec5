#include "starling/transport/c10d/nccl_transport.h"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/transport/c10d/pieces.h"

namespace starling {
namespace {

using Id = Communicators::Id;

// One direction between two workers: pieces go over its communicator one after the other.
class Lane {
 public:
  Lane(std::shared_ptr<Communicators> communicators, const Id& id, int end)
      : communicators_(std::move(communicators)), id_(id), end_(end) {}

  const Id& id() const { return id_; }
  std::uint64_t next_place() { return ++places_; }
  // When it is this place's turn: what is to be done, and its failure, which closes the lane. Once it is closed, nothing.
  void carry(std::uint64_t place, const std::function<void(Communicator&)>& piece) {
    try {
      Communicator* const mine = wait_for_turn(place);
      if (mine == nullptr) return;
      piece(*mine);
    } catch (...) {
      if (close()) throw;
      return;
    }
    const std::lock_guard lock(mutex_);
    ++over_;
    turn_.notify_all();
  }
  // False: it was closed before.
  bool close() {
    const std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) return false;
    if (communicator_) communicator_->end();
    turn_.notify_all();
    return true;
  }

 private:
  Communicator* wait_for_turn(std::uint64_t place) {
    std::unique_lock lock(mutex_);
    turn_.wait(lock, [&] { return closed_ || over_ + 1 == place; });
    if (closed_) return nullptr;
    if (!communicator_) communicator_ = communicators_->join(id_, end_);
    return communicator_.get();
  }

  const std::shared_ptr<Communicators> communicators_;
  const Id id_;
  const int end_;
  std::uint64_t places_ = 0;  // only the transport's thread touches it
  std::mutex mutex_;          // guards what follows
  std::condition_variable turn_;
  std::uint64_t over_ = 0;
  bool closed_ = false;
  std::unique_ptr<Communicator> communicator_;
};

class LanePassage final : public Carrier::Passage {
 public:
  LanePassage(std::shared_ptr<Lane> lane, std::function<void(Communicator&)> piece)
      : lane_(std::move(lane)), place_(lane_->next_place()), piece_(std::move(piece)) {}
  void wait() override { lane_->carry(place_, piece_); }
  void call_back() override { lane_->close(); }

 private:
  const std::shared_ptr<Lane> lane_;
  const std::uint64_t place_;
  const std::function<void(Communicator&)> piece_;
};

class Lanes final : public Carrier {
 public:
  Lanes(std::shared_ptr<Communicators> communicators, int size)
      : communicators_(std::move(communicators)), peers_(static_cast<std::size_t>(size)) {}

  std::string name() const override { return communicators_->name(); }
  bool renews() const override { return true; }
  void disconnected(int peer) override {
    const std::lock_guard lock(mutex_);
    for (Lane* const lane : {this->peer(peer).from.get(), this->peer(peer).to.get()}) {
      if (lane != nullptr) lane->close();
    }
    this->peer(peer) = {};
  }
  Sent send(int peer, int, std::span<const std::byte> from) override {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Lane>& lane = this->peer(peer).to;
    if (!lane) lane = std::make_shared<Lane>(communicators_, communicators_->new_id(), 0);
    const Id& id = lane->id();
    return {std::make_shared<LanePassage>(lane, [from](Communicator& c) { c.send(from); }),
            {id.begin(), id.end()}};
  }
  std::shared_ptr<Passage> receive(int peer, int, std::span<std::byte> to,
                                   std::span<const std::byte> note) override {
    Id id;
    if (note.size() != id.size()) throw Error("it names no lane");
    std::ranges::copy(note, id.begin());
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Lane>& lane = this->peer(peer).from;
    if (!lane) lane = std::make_shared<Lane>(communicators_, id, 1);
    if (lane->id() != id) throw Error("it names another lane than before");
    return std::make_shared<LanePassage>(lane, [to](Communicator& c) { c.receive(to); });
  }

 private:
  struct Peer {
    std::shared_ptr<Lane> from, to;  // since the first piece of this connection
  };
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }

  const std::shared_ptr<Communicators> communicators_;
  std::mutex mutex_;  // guards which lanes there are
  std::vector<Peer> peers_;
};

}  // namespace

std::function<std::unique_ptr<Transport>(const World&, const std::string& channel)> nccl_transports(
    std::function<std::unique_ptr<Communicators>()> make) {
  struct Made {
    std::mutex mutex;
    std::shared_ptr<Communicators> communicators;
  };
  return [make = std::move(make), made = std::make_shared<Made>(), tags = std::make_shared<Tags>(0)](
             const World& world, const std::string& channel) {
    const std::lock_guard lock(made->mutex);
    if (!made->communicators) made->communicators = make();
    return make_piece_transport(std::make_shared<Lanes>(made->communicators, world.size), tags, world,
                                channel);
  };
}

}  // namespace starling
