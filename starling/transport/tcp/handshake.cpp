#include "starling/transport/tcp/handshake.h"

#include <utility>

#include <fmt/format.h>

namespace starling::tcp {

std::string to_string(const Tcp::endpoint& endpoint) {
  const std::string host = endpoint.address().to_string();
  return endpoint.address().is_v6() ? fmt::format("[{}]:{}", host, endpoint.port())
                                    : fmt::format("{}:{}", host, endpoint.port());
}

// --- Dial ---

Dial::Dial(LocalEnd& local, int peer, Purpose purpose, Done done)
    : local_(local),
      peer_(peer),
      purpose_(purpose),
      done_(std::move(done)),
      socket_(local.io),
      deadline_(local.io) {}

void Dial::start(const Tcp::endpoint& address) {
  deadline_.expires_after(local_.options.handshake);
  deadline_.async_wait([self = shared_from_this()](const asio::error_code& cancelled) {
    if (!cancelled) self->end(Outcome::failed, "it does not answer");
  });
  socket_.async_connect(address, [self = shared_from_this()](const asio::error_code& error) {
    if (error == asio::error::connection_refused) return self->end(Outcome::refused, "its port refuses");
    if (error) return self->end(Outcome::failed, error.message());
    if (self->purpose_ == Purpose::probe) return self->end(Outcome::listening);
    self->say_hello();
  });
}

void Dial::say_hello() {
  hello_ = Hello::of(local_.identity, peer_).encode();
  asio::async_write(socket_, asio::buffer(hello_),
                    [self = shared_from_this()](const asio::error_code& error, std::size_t) {
                      if (error) return self->end(Outcome::failed, error.message());
                      self->read_challenge();
                    });
}

void Dial::read_challenge() {
  asio::async_read(socket_, asio::buffer(challenge_),
                   [self = shared_from_this()](const asio::error_code& error, std::size_t) {
                     if (error) return self->end(Outcome::failed, "it refused this worker; its log says why");
                     if (!is_challenge(self->challenge_)) {
                       return self->end(Outcome::failed, "it does not speak Starling's protocol");
                     }
                     self->send_proof();
                   });
}

void Dial::send_proof() {
  proof_ = prove(local_.identity.token, Role::dialer, hello_, challenge_);
  asio::async_write(socket_, asio::buffer(proof_),
                    [self = shared_from_this()](const asio::error_code& error, std::size_t) {
                      if (error) return self->end(Outcome::failed, error.message());
                      self->read_welcome();
                    });
}

void Dial::read_welcome() {
  asio::async_read(
      socket_, asio::buffer(proof_), [self = shared_from_this()](const asio::error_code& error, std::size_t) {
        if (error)
          return self->end(Outcome::failed,
                           "it refused this worker: has it another token, or is it connected to another "
                           "process of this rank?");
        const Digest expected =
            prove(self->local_.identity.token, Role::acceptor, self->hello_, self->challenge_);
        if (!same(self->proof_, expected)) {
          return self->end(Outcome::failed, fmt::format("it could not prove the token: {}", kSameToken));
        }
        self->end(Outcome::connected);
      });
}

void Dial::close() {
  done_ = nullptr;
  deadline_.cancel();
  asio::error_code ignored;
  socket_.close(ignored);
}

void Dial::end(Outcome outcome, const std::string& reason) {
  if (!done_) return;
  Tcp::socket socket = std::move(socket_);
  const Done done = std::move(done_);
  close();
  done(outcome, std::move(socket), reason);
}

// --- Acceptance ---

Acceptance::Acceptance(LocalEnd& local, Tcp::socket socket, Examined examined)
    : local_(local), examined_(std::move(examined)), socket_(std::move(socket)), deadline_(local.io) {
  asio::error_code gone;
  const auto address = socket_.remote_endpoint(gone);
  name_ = gone ? "a stranger" : fmt::format("a stranger at {}", to_string(address));
}

void Acceptance::start() {
  deadline_.expires_after(local_.options.handshake);
  deadline_.async_wait([self = shared_from_this()](const asio::error_code& cancelled) {
    if (!cancelled) self->end(-1, "it did not authenticate in time");
  });
  read_hello();
}

void Acceptance::read_hello() {
  asio::async_read(socket_, asio::buffer(hello_),
                   [self = shared_from_this()](const asio::error_code& error, std::size_t bytes) {
                     // A caller that sends nothing at all only probed whether this worker still
                     // listens.
                     if (error)
                       return self->end(-1, bytes == 0 ? "" : "it disconnected during the handshake");
                     const Caller caller = examine(self->hello_, self->local_.identity);
                     if (!caller.refusal.empty()) return self->end(-1, caller.refusal);
                     self->peer_ = caller.rank;
                     self->send_challenge();
                   });
}

void Acceptance::send_challenge() {
  challenge_ = Challenge::fresh().encode();
  asio::async_write(socket_, asio::buffer(challenge_),
                    [self = shared_from_this()](const asio::error_code& error, std::size_t) {
                      if (error) return self->end(-1, error.message());
                      self->read_proof();
                    });
}

void Acceptance::read_proof() {
  asio::async_read(socket_, asio::buffer(proof_),
                   [self = shared_from_this()](const asio::error_code& error, std::size_t) {
                     if (error) return self->end(-1, "it disconnected before it had proven the token");
                     const Digest expected =
                         prove(self->local_.identity.token, Role::dialer, self->hello_, self->challenge_);
                     if (!same(self->proof_, expected))
                       return self->end(-1, "it does not have this run's token");
                     self->end(self->peer_);
                   });
}

void Acceptance::welcome(Welcomed welcomed) {
  proof_ = prove(local_.identity.token, Role::acceptor, hello_, challenge_);
  asio::async_write(socket_, asio::buffer(proof_),
                    [self = shared_from_this(), welcomed = std::move(welcomed)](const asio::error_code& error,
                                                                                std::size_t) {
                      if (!error) welcomed(std::move(self->socket_));
                    });
}

void Acceptance::close() {
  examined_ = nullptr;
  deadline_.cancel();
  asio::error_code ignored;
  socket_.close(ignored);
}

void Acceptance::end(int peer, const std::string& reason) {
  if (!examined_) return;
  const Examined examined = std::move(examined_);
  if (peer < 0) {
    close();
  } else {
    examined_ = nullptr;
    deadline_.cancel();
  }
  examined(peer, reason);
}

}  // namespace starling::tcp
