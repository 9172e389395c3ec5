#include "starling/transport/tcp/handshake.h"

#include <utility>

#include <fcntl.h>
#include <fmt/format.h>

namespace starling::tcp {

void keep_from_programs(int socket) { static_cast<void>(::fcntl(socket, F_SETFD, FD_CLOEXEC)); }

std::string to_string(const Tcp::endpoint& endpoint) {
  const std::string host = endpoint.address().to_string();
  return endpoint.address().is_v6() ? fmt::format("[{}]:{}", host, endpoint.port())
                                    : fmt::format("{}:{}", host, endpoint.port());
}

std::string name_of_peer(const Tcp::socket& socket) {
  asio::error_code gone;
  const auto address = socket.remote_endpoint(gone);
  return gone ? "an unknown address" : to_string(address);
}

bool within_host(const Tcp::socket& socket) {
  asio::error_code gone_here, gone_there;
  const auto here = socket.local_endpoint(gone_here), there = socket.remote_endpoint(gone_there);
  return !gone_here && !gone_there && here.address() == there.address();
}

namespace {

Seals seals_of(const std::string& token, Role self, const Conversation& said) {
  if (!said.sealed) return {};
  const Role other = self == Role::dialer ? Role::acceptor : Role::dialer;
  return {Seal(frame_key(token, self, said)), Seal(frame_key(token, other, said))};
}

}  // namespace

// --- Dial ---

Dial::Dial(LocalEnd& local, int peer, Purpose purpose, Done done)
    : local_(local),
      peer_(peer),
      purpose_(purpose),
      done_(std::move(done)),
      stream_(local.io),
      deadline_(local.io) {}

void Dial::start(const Tcp::endpoint& address) {
  deadline_.expires_after(local_.options.handshake);
  deadline_.async_wait([self = shared_from_this()](const asio::error_code& cancelled) {
    if (!cancelled) self->end(Outcome::failed, "it does not answer");
  });
  asio::error_code failed;  // as async_connect() then does too
  stream_.socket().open(address.protocol(), failed);
  keep_from_programs(stream_.socket().native_handle());
  stream_.socket().async_connect(address, [self = shared_from_this()](const asio::error_code& error) {
    if (error == asio::error::connection_refused) return self->end(Outcome::refused, "its port refuses");
    if (error) return self->end(Outcome::failed, error.message());
    if (self->purpose_ == Purpose::probe) return self->end(Outcome::listening);
    self->secure();
  });
}

void Dial::secure() {
  stream_.async_secure(local_.tls.get(), Role::dialer,
                       [self = shared_from_this()](const asio::error_code& error) {
                         if (error) return self->end(Outcome::failed, self->stream_.reason_of(error));
                         if (self->stream_.tls()) self->said_.binding = self->stream_.tls()->binding();
                         self->say_hello();
                       });
}

void Dial::say_hello() {
  said_.hello = Hello::of(local_.identity, peer_).encode();
  stream_.async_write(said_.hello, [self = shared_from_this()](const asio::error_code& error, std::size_t) {
    if (error) return self->end(Outcome::failed, self->stream_.reason_of(error));
    self->read_challenge();
  });
}

void Dial::read_challenge() {
  stream_.async_read(
      said_.challenge, [self = shared_from_this()](const asio::error_code& error, std::size_t) {
        if (error)
          return self->end(Outcome::failed,
                           self->stream_.tls_reason_or("it refused this worker; its log says why"));
        const auto challenge = Challenge::decode(self->said_.challenge);
        if (!challenge) return self->end(Outcome::failed, "it does not speak Starling's protocol");
        self->send_proof(challenge->port);
      });
}

void Dial::send_proof(std::uint32_t its_port) {
  asio::error_code gone;
  const bool is_direct =
      within_host(stream_.socket()) && stream_.socket().remote_endpoint(gone).port() == its_port;
  said_.sealed = !stream_.tls() && (!is_direct || local_.options.seal_within_host);
  proof_ = prove(local_.identity.token, Role::dialer, said_);
  stream_.async_write(proof_, [self = shared_from_this()](const asio::error_code& error, std::size_t) {
    if (error) return self->end(Outcome::failed, self->stream_.reason_of(error));
    self->read_welcome();
  });
}

void Dial::read_welcome() {
  stream_.async_read(proof_, [self = shared_from_this()](const asio::error_code& error, std::size_t) {
    if (error)
      return self->end(Outcome::failed,
                       "it refused this worker: has it another token, or is it connected to another "
                       "process of this rank?");
    const Digest expected = prove(self->local_.identity.token, Role::acceptor, self->said_);
    if (!same(self->proof_, expected))
      return self->end(Outcome::failed, fmt::format("it could not prove the token: {}", kSameToken));
    self->end(Outcome::connected);
  });
}

void Dial::close() {
  done_ = nullptr;
  deadline_.cancel();
  stream_.close();
}

void Dial::end(Outcome outcome, const std::string& reason) {
  if (!done_) return;
  ProvenStream proven{std::move(stream_), {}};
  if (outcome == Outcome::connected) proven.seals = seals_of(local_.identity.token, Role::dialer, said_);
  const Done done = std::move(done_);
  close();
  done(outcome, std::move(proven), reason);
}

// --- Acceptance ---

Acceptance::Acceptance(LocalEnd& local, Tcp::socket socket, Examined examined)
    : local_(local), examined_(std::move(examined)), stream_(std::move(socket)), deadline_(local.io) {
  keep_from_programs(stream_.socket().native_handle());
  name_ = fmt::format("a stranger at {}", name_of_peer(stream_.socket()));
}

void Acceptance::start() {
  deadline_.expires_after(local_.options.handshake);
  deadline_.async_wait([self = shared_from_this()](const asio::error_code& cancelled) {
    if (!cancelled) self->end(-1, "it did not authenticate in time");
  });
  secure();
}

void Acceptance::secure() {
  stream_.async_secure(
      local_.tls.get(), Role::acceptor, [self = shared_from_this()](const asio::error_code& error) {
        const TlsSession* const tls = self->stream_.tls();
        // A caller that sends nothing at all only probed.
        if (error) return self->end(-1, tls && tls->has_heard() ? self->stream_.reason_of(error) : "");
        if (tls) self->said_.binding = tls->binding();
        self->read_hello();
      });
}

void Acceptance::read_hello() {
  stream_.async_read(said_.hello,
                     [self = shared_from_this()](const asio::error_code& error, std::size_t bytes) {
                       // A caller that sends nothing at all only probed whether this worker still
                       // listens.
                       if (error)
                         return self->end(-1, bytes == 0 ? "" : "it disconnected during the handshake");
                       const Caller caller = examine(self->said_.hello, self->local_.identity);
                       if (!caller.refusal.empty()) return self->end(-1, caller.refusal);
                       self->peer_ = caller.rank;
                       self->send_challenge();
                     });
}

void Acceptance::send_challenge() {
  asio::error_code gone;
  const bool is_local = within_host(stream_.socket()) && !local_.options.seal_within_host;
  may_be_checked_ = is_local || stream_.tls();
  const std::uint32_t port = is_local ? stream_.socket().local_endpoint(gone).port() : 0;
  said_.challenge = Challenge::fresh(port).encode();
  stream_.async_write(said_.challenge,
                      [self = shared_from_this()](const asio::error_code& error, std::size_t) {
                        if (error) return self->end(-1, self->stream_.reason_of(error));
                        self->read_proof();
                      });
}

void Acceptance::read_proof() {
  stream_.async_read(proof_, [self = shared_from_this()](const asio::error_code& error, std::size_t) {
    if (error) return self->end(-1, "it disconnected before it had proven the token");
    if (!self->is_proven()) return self->end(-1, "it does not have this run's token");
    self->end(self->peer_);
  });
}

// The proof also says whether the dialer wants sealed frames.
bool Acceptance::is_proven() {
  const auto holds = [&](bool sealed) {
    said_.sealed = sealed;
    return same(proof_, prove(local_.identity.token, Role::dialer, said_));
  };
  return holds(true) || (may_be_checked_ && holds(false));
}

void Acceptance::welcome(Welcomed welcomed) {
  proof_ = prove(local_.identity.token, Role::acceptor, said_);
  stream_.async_write(proof_, [self = shared_from_this(), welcomed = std::move(welcomed)](
                                  const asio::error_code& error, std::size_t) {
    if (error) return;
    const std::string& token = self->local_.identity.token;
    welcomed({std::move(self->stream_), seals_of(token, Role::acceptor, self->said_)});
  });
}

void Acceptance::close() {
  examined_ = nullptr;
  deadline_.cancel();
  stream_.close();
}

// A refusal is told before the caller can notice it.
void Acceptance::end(int peer, const std::string& reason) {
  if (!examined_) return;
  deadline_.cancel();
  std::exchange(examined_, nullptr)(peer, reason);
  if (peer < 0) close();
}

}  // namespace starling::tcp
