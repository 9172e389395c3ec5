// A socket, plain or with TLS. All on the transport's thread. It may be moved while nothing is in
// flight.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "starling/transport/tcp/asio.h"
#include "starling/transport/tcp/tls.h"

namespace starling::tcp {

class Stream {
 public:
  using Done = std::function<void(const asio::error_code& error, std::size_t bytes)>;

  explicit Stream(asio::io_context& io) : socket_(io) {}
  explicit Stream(Tcp::socket socket) : socket_(std::move(socket)) {}

  Tcp::socket& socket() { return socket_; }
  const Tcp::socket& socket() const { return socket_; }
  const TlsSession* tls() const { return tls_.get(); }
  // Ends it for the peer too, even if the descriptor lives on in a forked process.
  void close();

  // Calls done with an error, or without one. `tls` outlives this. Without it, nothing is to do.
  void async_secure(const Tls* tls, Role role, std::function<void(const asio::error_code& error)> done);

  // At least one byte, or an error, which may be would_block.
  std::size_t read_some(std::span<const asio::mutable_buffer> to, asio::error_code& error);
  std::size_t write_some(std::span<const asio::const_buffer> from, asio::error_code& error);
  // All of it. The memory, and the owner of this object, must live until done() is called.
  void async_read(std::span<std::byte> to, Done done);
  void async_write(std::span<const std::byte> from, Done done);

  // An error in words.
  std::string reason_of(const asio::error_code& error) const;
  // The reason of TLS, if the last call failed by it, else `otherwise`.
  std::string tls_reason_or(const std::string& otherwise) const;

 private:
  void go_on(std::function<void(const asio::error_code& error)> done);
  // All bytes in one direction; some() moves those from a place on, as far as it can at once.
  struct Move {
    Tcp::socket::wait_type wait;
    std::size_t size;
    std::function<std::size_t(std::size_t from, asio::error_code& error)> some;
    Done done;
  };
  void move_on(Move move, std::size_t moved);

  Tcp::socket socket_;
  std::unique_ptr<TlsSession> tls_;
};

}  // namespace starling::tcp
