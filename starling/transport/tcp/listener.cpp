#include "starling/transport/tcp/listener.h"

#include <utility>

#include <fmt/format.h>
#include <sys/socket.h>

#include "starling/core/error.h"
#include "starling/world/token.h"

namespace starling::tcp {
namespace {

// For example, out of descriptors.
constexpr auto kPauseAfterError = std::chrono::milliseconds(100);

Tcp::endpoint resolve(LocalEnd& local, const std::string& address) {
  asio::error_code error;
  const auto found = Tcp::resolver(local.io).resolve(address, "0", Tcp::resolver::passive, error);
  if (error || found.empty())
    throw Error(fmt::format("tcp transport: worker {} cannot resolve its own address '{}': {}",
                            local.identity.rank, address, error.message()));
  return found.begin()->endpoint();
}

}  // namespace

Listener::Listener(LocalEnd& local, const std::string& address, Proven proven)
    : local_(local), proven_(std::move(proven)), acceptor_(local.io), pause_(local.io) {
  const Tcp::endpoint wanted = resolve(local, address);
  if (address.empty() || wanted.address().is_unspecified()) {
    throw UsageError(
        fmt::format("tcp transport: worker {} would listen on all interfaces at '{}': give the one address "
                    "at which the other workers reach it",
                    local.identity.rank, address));
  }
  if (const std::size_t bytes = local.identity.token.size(); bytes < kLeastToken) {
    throw UsageError(
        fmt::format("tcp transport: worker {} at {} would accept strangers: its token has {} bytes, and "
                    "needs at least {}; "
                    "set STARLING_TOKEN_FILE (or STARLING_TOKEN) to the same secret on all workers",
                    local.identity.rank, wanted.address().to_string(), bytes, kLeastToken));
  }
  asio::error_code error;
  acceptor_.open(wanted.protocol(), error);
  if (!error) acceptor_.bind(wanted, error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (!error) address_ = acceptor_.local_endpoint(error);
  if (!error) keep_from_programs(acceptor_.native_handle());
  if (error)
    throw Error(fmt::format("tcp transport: worker {} cannot listen at {}: {}", local.identity.rank,
                            wanted.address().to_string(), error.message()));
}

void Listener::accept() {
  acceptor_.async_accept([this](const asio::error_code& error, Tcp::socket socket) {
    if (!acceptor_.is_open()) return;
    if (!error) {
      examine(std::move(socket));
      return accept();
    }
    warn(fmt::format("cannot accept a connection: {}", error.message()));
    pause_.expires_after(kPauseAfterError);
    pause_.async_wait([this](const asio::error_code& cancelled) {
      if (!cancelled && acceptor_.is_open()) accept();
    });
  });
}

// If there are too many strangers, the oldest is closed. A peer needs only a moment, so this never
// hits a peer, even if an attacker holds connections open.
void Listener::examine(Tcp::socket socket) {
  const std::size_t bound = 2 * static_cast<std::size_t>(local_.identity.size) + 16;
  if (strangers_.size() >= bound) {
    const auto oldest = strangers_.front();
    strangers_.pop_front();
    warn(
        fmt::format("refused {}: there are more than {} unauthenticated connections", oldest->name(), bound));
    oldest->close();
  }
  const auto place = strangers_.emplace(strangers_.end());
  *place = std::make_shared<Acceptance>(local_, std::move(socket),
                                        [this, place](int peer, const std::string& reason) {
                                          const auto stranger = std::move(*place);
                                          strangers_.erase(place);
                                          if (peer >= 0) return proven_(peer, stranger);
                                          if (!reason.empty())
                                            warn(fmt::format("refused {}: {}", stranger->name(), reason));
                                        });
  (*place)->start();
}

void Listener::warn(const std::string& message) {
  if (const auto more = warning_.say(Clock::now()))
    local_.warn(fmt::format("tcp transport: worker {} at {} {}{}", local_.identity.rank, to_string(address_),
                            message, *more));
}

void Listener::close() {
  asio::error_code ignored;
  ::shutdown(acceptor_.native_handle(), SHUT_RDWR);  // also if it lives on in a forked process
  acceptor_.close(ignored);
  pause_.cancel();
  for (const auto& stranger : strangers_) stranger->close();
  strangers_.clear();
}

}  // namespace starling::tcp
