#include "starling/transport/tcp/stream.h"

#include <utility>

namespace starling::tcp {

void Stream::close() {
  asio::error_code ignored;
  socket_.shutdown(Tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
}

void Stream::async_secure(const Tls* tls, Role role, std::function<void(const asio::error_code&)> done) {
  asio::error_code error;
  socket_.non_blocking(true, error);
  const auto address = socket_.remote_endpoint(error).address();
  if (!error && tls) tls_ = std::make_unique<TlsSession>(*tls, role, socket_.native_handle(), address);
  if (!error && tls) return go_on(std::move(done));
  asio::post(socket_.get_executor(), [done = std::move(done), error] { done(error); });
}

void Stream::go_on(std::function<void(const asio::error_code&)> done) {
  const auto again = [this, done](const asio::error_code& error) { error ? done(error) : go_on(done); };
  switch (tls_->shake_hands()) {
    case TlsSession::Step::wants_read:
      return socket_.async_wait(Tcp::socket::wait_read, again);
    case TlsSession::Step::wants_write:
      return socket_.async_wait(Tcp::socket::wait_write, again);
    case TlsSession::Step::done:
      return asio::post(socket_.get_executor(), [done] { done({}); });
    case TlsSession::Step::failed:
      return asio::post(socket_.get_executor(), [done] { done(asio::error::connection_aborted); });
  }
}

std::size_t Stream::read_some(std::span<const asio::mutable_buffer> to, asio::error_code& error) {
  if (!tls_) return socket_.read_some(to, error);
  std::size_t all = 0;
  for (const auto& buffer : to) {
    const std::span place(static_cast<std::byte*>(buffer.data()), buffer.size());
    for (std::size_t read = 0; read < place.size();) {
      const std::size_t bytes = tls_->read_some(place.subspan(read), error);
      if (error && all > 0) error.clear();  // it comes again
      if (bytes == 0) return all;
      read += bytes;
      all += bytes;
    }
  }
  return all;
}

std::size_t Stream::write_some(std::span<const asio::const_buffer> from, asio::error_code& error) {
  return tls_ ? tls_->write_some(from, error) : socket_.write_some(from, error);
}

void Stream::async_read(std::span<std::byte> to, Done done) {
  const auto some = [this, to](std::size_t read, asio::error_code& error) {
    const asio::mutable_buffer rest = asio::buffer(to.data() + read, to.size() - read);
    return read_some({&rest, 1}, error);
  };
  move_on({Tcp::socket::wait_read, to.size(), some, std::move(done)}, 0);
}

void Stream::async_write(std::span<const std::byte> from, Done done) {
  const auto some = [this, from](std::size_t written, asio::error_code& error) {
    const asio::const_buffer rest = asio::buffer(from.data() + written, from.size() - written);
    return write_some({&rest, 1}, error);
  };
  move_on({Tcp::socket::wait_write, from.size(), some, std::move(done)}, 0);
}

void Stream::move_on(Move move, std::size_t moved) {
  asio::post(socket_.get_executor(), [this, move = std::move(move), moved] {
    // TLS knows the descriptor by its number, which may be another's now.
    if (!socket_.is_open()) return move.done(asio::error::operation_aborted, moved);
    asio::error_code error;
    const std::size_t bytes = move.some(moved, error);
    if (error && error != asio::error::would_block) return move.done(error, moved);
    if (moved + bytes == move.size) return move.done({}, move.size);
    if (bytes > 0) return move_on(move, moved + bytes);
    socket_.async_wait(move.wait, [this, move, moved](const asio::error_code& gone) {
      gone ? move.done(gone, moved) : move_on(move, moved);
    });
  });
}

std::string Stream::reason_of(const asio::error_code& error) const {
  return tls_reason_or(error == asio::error::eof ? "it closed the connection" : error.message());
}

std::string Stream::tls_reason_or(const std::string& otherwise) const {
  return tls_ && !tls_->trouble().empty() ? tls_->trouble() : otherwise;
}

}  // namespace starling::tcp
