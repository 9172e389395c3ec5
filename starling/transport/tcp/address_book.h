// The addresses of the other workers, from the store. A thread of its own queries it, because the
// store may block until a late worker comes, and the transport's thread must not. All workers are
// looked up at the start. Later nothing depends on the store, except to find a restarted worker.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "starling/transport/tcp/asio.h"
#include "starling/transport/tcp/proof.h"
#include "starling/world/world.h"

namespace starling::tcp {

// An address as the store holds it, signed with the run's token for this worker and channel.
std::string signed_address(const Identity& identity, int rank, const std::string& address);

// An address in the store, as anybody may have written it.
struct SaidAddress {
  bool is_signed = false;                     // by signed_address()
  std::optional<Tcp::endpoint> address = {};  // if it is signed, and is one
};
SaidAddress read_address(const Identity& identity, int rank, const std::string& said);

class AddressBook {
 public:
  // These and the world's log are called on the book's thread, never after stop() has returned.
  using Found = std::function<void(int peer, const Tcp::endpoint& address)>;
  // A worker without an address, and how it has ended (World::fate).
  using Ended = std::function<void(int peer, const std::string& how)>;

  // A worker whose address is not signed with this run's token.
  using Forged = std::function<void(int peer)>;

  AddressBook(const World& world, const std::string& channel, Found found, Ended ended, Forged forged);
  ~AddressBook() { stop(); }

  void publish(const Tcp::endpoint& own);
  void start();
  // Takes at most a second. A thread that waits longer for the store is left behind, and holds only
  // the store. (torch's store has no deadline if the host of the store is cut off.)
  void stop();
  // A link seeks this peer: looks it up (again), before those that none seeks.
  void refresh(int peer);

 private:
  struct Search;
  const std::shared_ptr<Search> search_;
  std::thread thread_;
};

}  // namespace starling::tcp
