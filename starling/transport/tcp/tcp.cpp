#include "starling/transport/tcp/tcp.h"

#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/signals.h"
#include "starling/transport/outbox.h"
#include "starling/transport/tcp/address_book.h"
#include "starling/transport/tcp/asio.h"
#include "starling/transport/tcp/link.h"
#include "starling/transport/tcp/listener.h"
#include "starling/transport/tcp/local_end.h"

namespace starling {
namespace tcp {
namespace {

constexpr auto kFarewell = std::chrono::milliseconds(1000);  // the longest time of stop()

class TcpTransport final : public Transport {
 public:
  TcpTransport(const TcpOptions& options, const World& world, const std::string& channel)
      : book_(
            world, channel,
            [this](int peer, const Tcp::endpoint& address) {
              asio::post(local_.io, [this, peer, address] { link(peer).found(address); });
            },
            [this](int peer, const std::string& how) {
              asio::post(local_.io, [this, peer, how] { link(peer).ended(how); });
            },
            [this](int peer) { asio::post(local_.io, [this, peer] { link(peer).forged(); }); }),
        listener_(
            prepared(options, world, channel), world.address,
            [this](int peer, std::shared_ptr<Acceptance> caller) { link(peer).accepted(std::move(caller)); }),
        farewell_(local_.io) {
    for (int peer = 0; peer < world.size; ++peer)
      links_.push_back(peer == world.rank ? nullptr : std::make_unique<Link>(local_, book_, peer));
    book_.publish(listener_.address());
  }
  ~TcpTransport() override { stop(); }

  int rank() const override { return local_.identity.rank; }
  int size() const override { return local_.identity.size; }

  void start(TransportHandler& handler) override {
    local_.handler = &handler;
    listener_.start();
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { local_.io.run(); });
    book_.start();
  }

  void stop() override {
    if (std::exchange(stopped_, true)) return;
    book_.stop();
    if (thread_.joinable()) {
      asio::post(local_.io, [this] { finish(); });
      thread_.join();
    }
    listener_.close();
    for (const auto& link : links_) {
      if (link) link->close();
    }
  }

  void open(int peer) override {
    check(peer);
    work_soon([this, peer] { link(peer).open(); });
  }

  void reset(int peer, const std::string& reason) override {
    check(peer);
    work_soon([this, peer, reason] { link(peer).reset(reason); });
  }

  void send(int peer, Frame frame, Payload payload) override {
    check(peer);
    Outbox::check(frame, payload);
    const std::uint64_t connection = link(peer).connection();
    if (connection == 0) return;
    if (on_thread()) {
      link(peer).send(connection, frame, std::move(payload));
    } else {
      asio::post(local_.io, [this, peer, connection, frame, payload = std::move(payload)]() mutable {
        link(peer).send(connection, frame, std::move(payload));
      });
    }
  }

  void cancel(int peer, FrameType type, std::uint64_t round, std::uint32_t block) override {
    check(peer);
    if (on_thread()) {
      link(peer).cancel(type, round, block);
    } else {
      asio::post(local_.io, [this, peer, type, round, block] { link(peer).cancel(type, round, block); });
    }
  }

  void post(std::function<void()> work) override { work_soon(std::move(work)); }

  void at(Time when, std::function<void()> work) override {
    work_soon([this, when, work = std::move(work)]() mutable {
      auto timer = std::make_shared<asio::steady_timer>(local_.io, when);
      timer->async_wait([this, timer, work = std::move(work)](const asio::error_code&) {
        if (!finishing_) work();
      });
    });
  }

  Time now() const override { return Clock::now(); }
  std::uint64_t bytes_sent() const override { return local_.bytes_sent; }
  std::uint64_t payload_sent() const override { return local_.payload_sent; }

 private:
  LocalEnd& prepared(const TcpOptions& options, const World& world, const std::string& channel) {
    local_.identity = {world.rank, world.size, channel, world.token};
    local_.options = options;
    if (options.tls) local_.tls = std::make_unique<Tls>(*options.tls, world.token);
    local_.timeouts = world.timeouts;
    local_.log = world.log;
    return local_;
  }

  void check(int peer) const {
    if (peer < 0 || peer >= size() || peer == rank()) {
      throw UsageError(
          fmt::format("tcp transport: worker {} has no peer {}: its peers are the other ranks from 0 to {}",
                      rank(), peer, size() - 1));
    }
  }
  Link& link(int peer) { return *links_[static_cast<std::size_t>(peer)]; }
  bool on_thread() { return local_.io.get_executor().running_in_this_thread(); }

  template <typename Work>
  void work_soon(Work work) {
    asio::post(local_.io, [this, work = std::move(work)]() mutable {
      if (!finishing_) work();
    });
  }

  // On the transport's thread: the handler is not called from now on. Queued frames get a moment to
  // go out.
  void finish() {
    finishing_ = true;
    listener_.close();
    farewell_.expires_after(kFarewell);
    farewell_.async_wait([this](const asio::error_code&) { local_.io.stop(); });
    leaving_ = 1;
    const auto left = [this] {
      if (--leaving_ == 0) local_.io.stop();
    };
    for (const auto& link : links_) {
      if (!link) continue;
      ++leaving_;
      link->finish(left);
    }
    left();
  }

  LocalEnd local_;  // first: all other members hold sockets and timers of its io
  AddressBook book_;
  Listener listener_;
  std::vector<std::unique_ptr<Link>> links_;
  asio::steady_timer farewell_;
  int leaving_ = 0;         // links that have not finished
  bool finishing_ = false;  // on the transport's thread
  bool stopped_ = false;    // on the caller's thread
  asio::executor_work_guard<asio::io_context::executor_type> working_{local_.io.get_executor()};
  std::thread thread_;
};

}  // namespace
}  // namespace tcp

std::unique_ptr<Transport> make_tcp_transport(const World& world, const std::string& channel) {
  return make_tcp_transport_with({}, world, channel);
}

std::unique_ptr<Transport> make_tcp_transport_with(const TcpOptions& options, const World& world,
                                                   const std::string& channel) {
  if (!world.store) throw UsageError(fmt::format("tcp transport: worker {} has no store", world.rank));
  return std::make_unique<tcp::TcpTransport>(options, world, channel);
}

}  // namespace starling
