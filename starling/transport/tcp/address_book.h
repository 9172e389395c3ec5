// Where the others listen, asked of the store on a thread of its own: the store may wait for a worker that comes late,
// the transport's thread may not. All workers are looked up at the start, so that nothing depends on the store later,
// except to find a worker that was started again.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "starling/transport/tcp/asio.h"
#include "starling/transport/tcp/proof.h"
#include "starling/world/store.h"

namespace starling::tcp {

class AddressBook {
 public:
  // found: called on the book's thread.
  using Found = std::function<void(int peer, const Tcp::endpoint& address)>;

  AddressBook(const Identity& identity, std::shared_ptr<Store> store, Found found);
  ~AddressBook();  // stop()

  void publish(const Tcp::endpoint& own);
  void start();
  void stop();
  // Looks this peer up again.
  void refresh(int peer);

 private:
  void run();
  bool look_up(int peer);  // false: it is not there yet

  const Identity identity_;
  const std::shared_ptr<Store> store_;
  const Found found_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<int> missing_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace starling::tcp
