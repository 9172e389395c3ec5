// The socket functions that c10d lacks: addresses, a listener, and a check for listeners.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <sys/socket.h>

#include "starling/core/descriptor.h"

namespace starling {

// A numeric address with a port, IPv4 or IPv6.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  std::string host() const;
  int port() const;
  bool is_loopback() const;
};

// All addresses of a host name or numeric address, at least one; and the first of them. Throws
// Error with the name and the reason.
std::vector<SocketAddress> resolve_all(const std::string& host, int port);
SocketAddress resolve(const std::string& host, int port);

// The address from which this host reaches `remote`; nothing if there is no route.
std::optional<SocketAddress> local_address_towards(const SocketAddress& remote);

struct Interface {
  std::string name;
  SocketAddress address;
};
// All interfaces that are up, IPv4 addresses first.
std::vector<Interface> interfaces();

SocketAddress bound_address(const Descriptor& socket);

// A listening socket, not inherited by programs that this process starts. Port 0: any free one.
// Throws Error.
Descriptor listen_at(const SocketAddress& address);
// Closes the connections that wait there. If nobody takes them from a full queue, the socket
// answers no more.
void turn_away(const Descriptor& listener);

// Whether a process listens there. The operating system answers for the process, even for a busy or
// stopped one. If the process has ended, it refuses at once; if the host is gone, no answer comes
// within `patience`.
bool somebody_listens(const SocketAddress& address, std::chrono::milliseconds patience);

}  // namespace starling
