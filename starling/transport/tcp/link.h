// The way to one peer. The higher rank dials, the lower accepts; both keep at it until the connection stands again, and
// both look whether the peer's listener is still there:
//
//   seeking   no connection. The dialer dials, the acceptor probes the peer's port, ever less often (10 to 500 ms).
//             A port that refuses twice over 200 ms belongs to a process that has ended: the peer is lost. So it is
//             when it does not come within timeouts.meet at first, timeouts.silent later
//   up        frames flow
//   lost      the dialer goes on, slowly, asking the store for the peer's address anew: it may be started again
//
// All on the transport's thread, except connection().
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "starling/core/clock.h"
#include "starling/transport/tcp/address_book.h"
#include "starling/transport/tcp/connection.h"
#include "starling/transport/tcp/handshake.h"
#include "starling/transport/tcp/local_end.h"

namespace starling::tcp {

class Link {
 public:
  Link(LocalEnd& local, AddressBook& book, int peer);

  // By number, the connection that stands; 0: none. On any thread.
  std::uint64_t connection() const { return number_; }

  void open();
  void reset(const std::string& reason);
  void send(std::uint64_t connection, const Frame& frame, Payload payload);
  void cancel(FrameType type, std::uint64_t round, std::uint32_t block);
  // The last frames go out, nothing comes in, done is called when the peer has closed.
  void finish(std::function<void()> done);
  void close();  // at once

  void found(const Tcp::endpoint& address);           // by the address book
  void accepted(std::shared_ptr<Acceptance> caller);  // by the listener: proven to be this peer

 private:
  bool dials() const { return local_.identity.rank > peer_; }
  void seek(bool at_once);
  void try_soon();
  void try_now();
  void tried(Dial::Outcome outcome, Tcp::socket socket, const std::string& reason);
  void up(Tcp::socket socket);
  void down(const std::string& reason);
  void lose(const std::string& reason);
  void welcome(const std::shared_ptr<Acceptance>& caller);

  LocalEnd& local_;
  AddressBook& book_;
  const int peer_;

  bool wanted_ = false;
  bool met_ = false;  // was up once
  bool lost_ = false;
  bool finishing_ = false;
  std::optional<Tcp::endpoint> address_;
  std::shared_ptr<Acceptance> caller_;  // proven, but not wanted yet
  std::shared_ptr<Dial> dial_;          // under way
  std::shared_ptr<Connection> connection_;
  std::atomic<std::uint64_t> number_ = 0;
  std::uint64_t connections_ = 0;  // made so far
  Time up_since_{};

  // while seeking
  Duration pause_{};
  asio::steady_timer retry_;
  asio::steady_timer deadline_;
  std::optional<Time> refused_since_;
  std::string trouble_;  // of the last attempt
};

}  // namespace starling::tcp
