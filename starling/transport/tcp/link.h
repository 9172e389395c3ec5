// The link to one peer. The higher rank dials and the lower accepts. Both continue until the
// connection is restored, and both check whether the peer's listener is still there:
//
//   seeking   no connection. The dialer dials, the acceptor probes the peer's port, at growing
//             intervals (10 to 500 ms). If a port refuses twice over 50 ms, its process has ended
//             and the peer is lost. The peer is also lost if it does not come within timeouts.meet
//             at first, or timeouts.silent later, or while its address in the store is not
//             signed with this worker's token
//   up        frames flow. Another process that proves to be the peer takes its place only if the
//             connection then breaks, or is silent, for half of timeouts.silent. Else it is refused
//   lost      the dialer goes on, slowly, and reads the peer's address from the store again,
//             because the peer may be restarted
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

  // The number of the current connection; 0: none. On any thread.
  std::uint64_t connection() const { return number_; }

  void open();
  void reset(const std::string& reason);
  void send(std::uint64_t connection, const Frame& frame, Payload payload);
  void cancel(FrameType type, std::uint64_t round, std::uint32_t block);
  // Sends the last frames, takes nothing in, and calls done() when the peer has closed.
  void finish(std::function<void()> done);
  void close();  // at once

  void found(const Tcp::endpoint& address);           // by the address book
  void ended(const std::string& how);                 // by it too
  void forged();                                      // by it too: the address that it has read
  void accepted(std::shared_ptr<Acceptance> caller);  // by the listener: proven to be this peer

 private:
  bool dials() const { return local_.identity.rank > peer_; }
  bool is_seeking() const { return wanted_ && !connection_ && !lost_ && !finishing_; }
  void seek(bool at_once);
  void wait_for_it();  // the peer is lost if this takes too long
  void try_soon();
  void try_now();
  void tried(Dial::Outcome outcome, ProvenStream stream, const std::string& reason);
  void up(ProvenStream stream);
  void down(const std::string& reason);
  void lose(const std::string& reason);
  void has_ended(const std::string& reason);
  std::string no_address() const;
  void welcome(const std::shared_ptr<Acceptance>& caller);
  void claimed(std::shared_ptr<Acceptance> caller);
  void decide_claim(Time since);

  LocalEnd& local_;
  AddressBook& book_;
  const int peer_;

  bool wanted_ = false;
  bool met_ = false;  // was up once
  bool lost_ = false;
  bool ended_ = false;  // lost, and known to have ended
  bool finishing_ = false;
  std::optional<Tcp::endpoint> address_;
  bool forged_ = false;                 // the address in the store is not the peer's
  std::shared_ptr<Acceptance> caller_;  // proven, but not wanted yet, or while another is connected
  std::shared_ptr<Dial> dial_;          // in progress
  std::shared_ptr<Connection> connection_;
  std::atomic<std::uint64_t> number_ = 0;
  std::uint64_t connections_ = 0;  // made so far
  Time up_since_{};
  bool claim_refused_ = false;  // on this connection, as it said
  asio::steady_timer claim_;

  // while seeking
  Duration pause_{};
  asio::steady_timer retry_;
  asio::steady_timer deadline_;
  std::optional<Time> refused_since_;
  std::string trouble_;  // of the last attempt
};

}  // namespace starling::tcp
