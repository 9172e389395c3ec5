// The state that all parts of one transport share: the identity, the timeouts, the thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "starling/core/log.h"
#include "starling/transport/tcp/asio.h"
#include "starling/transport/tcp/proof.h"
#include "starling/transport/tcp/tcp.h"
#include "starling/transport/tcp/tls.h"
#include "starling/transport/transport.h"
#include "starling/world/world.h"

namespace starling::tcp {

struct LocalEnd {
  Identity identity;
  TcpOptions options;
  std::unique_ptr<const Tls> tls;  // none: plain
  Timeouts timeouts;
  Log log;
  TransportHandler* handler = nullptr;  // from start() on
  std::atomic<std::uint64_t> bytes_sent = 0, payload_sent = 0;
  asio::io_context io{1};  // one thread runs it

  void warn(const std::string& message) const {
    if (log) log(Level::warning, message);
  }
};

// Programs that this process starts do not inherit the socket: Asio leaves that to its users.
void keep_from_programs(int socket);

// "host:port", an IPv6 host in brackets.
std::string to_string(const Tcp::endpoint& endpoint);
// The same of the peer, or "an unknown address" if it has gone.
std::string name_of_peer(const Tcp::socket& socket);
// Whether both ends have the same address, so that one kernel joins them.
bool within_host(const Tcp::socket& socket);

}  // namespace starling::tcp
