// The two sides of authentication (proof.h) on a fresh socket, inside TLS if that is on. Each is an
// object that lives until it has called its callback, once, or was closed. All on the transport's
// thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "starling/transport/tcp/asio.h"
#include "starling/transport/tcp/local_end.h"
#include "starling/transport/tcp/proof.h"
#include "starling/transport/tcp/seal.h"
#include "starling/transport/tcp/stream.h"

namespace starling::tcp {

inline constexpr const char* kSameToken =
    "give all workers the same one, by STARLING_TOKEN_FILE or STARLING_TOKEN";

// A stream whose peer has proven to be a worker of this run, and the seals of its frames.
struct ProvenStream {
  Stream stream;
  Seals seals;
};

// Connects to a peer's listener and authenticates, or only probes whether the peer listens.
class Dial : public std::enable_shared_from_this<Dial> {
 public:
  enum class Purpose { connect, probe };
  enum class Outcome { connected, listening, refused, failed };
  // refused: nothing listens at that address. listening: a probe succeeded. The stream is proven if
  // the outcome is connected.
  using Done = std::function<void(Outcome, ProvenStream stream, const std::string& reason)>;

  Dial(LocalEnd& local, int peer, Purpose purpose, Done done);
  void start(const Tcp::endpoint& address);
  void close();

 private:
  void secure();
  void say_hello();
  void read_challenge();
  void send_proof(std::uint32_t its_port);
  void read_welcome();
  void end(Outcome outcome, const std::string& reason = {});

  LocalEnd& local_;
  const int peer_;
  const Purpose purpose_;
  Done done_;  // none: it has ended
  Stream stream_;
  asio::steady_timer deadline_;
  Conversation said_;
  Digest proof_{};
};

// A stranger on the listener. After it has proven to be a peer, it waits for welcome(), which
// completes the handshake. Before that the peer does not consider itself connected.
class Acceptance : public std::enable_shared_from_this<Acceptance> {
 public:
  // `peer`: the proven rank. -1: refused, with a reason, or gone, without one.
  using Examined = std::function<void(int peer, const std::string& reason)>;
  using Welcomed = std::function<void(ProvenStream stream)>;

  Acceptance(LocalEnd& local, Tcp::socket socket, Examined examined);
  void start();
  void welcome(Welcomed welcomed);  // not called if the peer has gone meanwhile
  void close();
  // "a stranger at host:port"
  const std::string& name() const { return name_; }

 private:
  void secure();
  void read_hello();
  void send_challenge();
  void read_proof();
  bool is_proven();
  void end(int peer, const std::string& reason = {});

  LocalEnd& local_;
  Examined examined_;  // none: it has ended
  Stream stream_;
  asio::steady_timer deadline_;
  std::string name_;
  int peer_ = -1;
  bool may_be_checked_ = false;  // frames need not be sealed
  Conversation said_;
  Digest proof_{};
};

}  // namespace starling::tcp
