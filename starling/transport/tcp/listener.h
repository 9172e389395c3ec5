// Accepts connections, and passes on those that prove to be a peer. Strangers are limited in number
// and time, and produce few log lines.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>

#include "starling/core/seldom.h"
#include "starling/transport/tcp/handshake.h"
#include "starling/transport/tcp/local_end.h"

namespace starling::tcp {

class Listener {
 public:
  using Proven = std::function<void(int peer, std::shared_ptr<Acceptance>)>;

  // Binds to a free port of this address and listens. Strangers wait until start(). Throws Error.
  Listener(LocalEnd& local, const std::string& address, Proven proven);

  const Tcp::endpoint& address() const { return address_; }
  void start() { accept(); }
  void close();

 private:
  void accept();
  void examine(Tcp::socket socket);
  void warn(const std::string& message);

  LocalEnd& local_;
  Proven proven_;
  Tcp::acceptor acceptor_;
  Tcp::endpoint address_;
  asio::steady_timer pause_;
  std::list<std::shared_ptr<Acceptance>> strangers_;  // the oldest first
  Seldom warning_;
};

}  // namespace starling::tcp
