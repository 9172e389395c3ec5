// Where the others listen, asked of the store on a thread of its own: the store may wait for a worker that comes late,
// the transport's thread may not. All workers are looked up at the start, so that nothing depends on the store later,
// except to find a worker that was started again.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "starling/transport/tcp/asio.h"
#include "starling/transport/tcp/proof.h"
#include "starling/world/store.h"

namespace starling::tcp {

class AddressBook {
 public:
  // found: called on the book's thread, not after stop() has returned.
  using Found = std::function<void(int peer, const Tcp::endpoint& address)>;

  AddressBook(const Identity& identity, std::shared_ptr<Store> store, Found found);
  ~AddressBook();  // stop()

  void publish(const Tcp::endpoint& own);
  void start();
  // Takes at most a second: a thread that waits longer for the store (torch's has no deadline where the host of the
  // store is cut off) is left behind, with nothing but the store.
  void stop();
  // Looks this peer up again.
  void refresh(int peer);

 private:
  struct Search;
  const std::shared_ptr<Search> search_;
  std::thread thread_;
};

}  // namespace starling::tcp
