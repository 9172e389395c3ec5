#include "starling/transport/c10d/socket.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <unistd.h>

#include "starling/core/clock.h"
#include "starling/core/error.h"

namespace starling {
namespace {

SocketAddress copy_of(const sockaddr* address, socklen_t length) {
  SocketAddress copy;
  std::memcpy(&copy.storage, address, length);
  copy.length = length;
  return copy;
}

Descriptor open_socket(int family, int type) {
  Descriptor socket(::socket(family, type | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) throw Error(fmt::format("cannot open a socket: {}", std::strerror(errno)));
  return socket;
}

}  // namespace

std::string SocketAddress::host() const {
  char text[NI_MAXHOST] = "";
  getnameinfo(get(), length, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

int SocketAddress::port() const {
  const in_port_t port = storage.ss_family == AF_INET6
                             ? reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port
                             : reinterpret_cast<const sockaddr_in*>(&storage)->sin_port;
  return ntohs(port);
}

bool SocketAddress::is_loopback() const {
  if (storage.ss_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
  return (ntohl(reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr) >> 24) == 127;
}

std::vector<SocketAddress> resolve_all(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failed) throw Error(fmt::format("the host '{}' cannot be found: {}", host, gai_strerror(failed)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* one = found; one; one = one->ai_next)
    addresses.push_back(copy_of(one->ai_addr, one->ai_addrlen));
  return addresses;
}

SocketAddress resolve(const std::string& host, int port) { return resolve_all(host, port).front(); }

std::optional<SocketAddress> local_address_towards(const SocketAddress& remote) {
  const Descriptor socket = open_socket(remote.storage.ss_family, SOCK_DGRAM);
  if (connect(socket.get(), remote.get(), remote.length) != 0)
    return std::nullopt;  // sends nothing: a datagram socket
  return bound_address(socket);
}

std::vector<Interface> interfaces() {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0)
    throw Error(fmt::format("cannot list network interfaces: {}", std::strerror(errno)));
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(found, freeifaddrs);
  std::vector<Interface> list;
  for (const int family : {AF_INET, AF_INET6}) {
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    for (const ifaddrs* one = found; one; one = one->ifa_next) {
      if (one->ifa_addr && one->ifa_addr->sa_family == family && (one->ifa_flags & IFF_UP))
        list.push_back({one->ifa_name, copy_of(one->ifa_addr, length)});
    }
  }
  return list;
}

SocketAddress bound_address(const Descriptor& socket) {
  SocketAddress address;
  address.length = sizeof address.storage;
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.length);
  return address;
}

Descriptor listen_at(const SocketAddress& address) {
  Descriptor socket = open_socket(address.storage.ss_family, SOCK_STREAM);
  const int on = 1;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(socket.get(), address.get(), address.length) != 0 || listen(socket.get(), SOMAXCONN) != 0)
    throw Error(
        fmt::format("cannot listen at {} port {}: {}", address.host(), address.port(), std::strerror(errno)));
  return socket;
}

void turn_away(const Descriptor& listener) {
  pollfd waiting{.fd = listener.get(), .events = POLLIN, .revents = 0};
  while (poll(&waiting, 1, 0) == 1) {
    const Descriptor caller(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (caller.get() < 0) return;
  }
}

bool somebody_listens(const SocketAddress& address, std::chrono::milliseconds patience) {
  const Descriptor socket = open_socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK);
  if (connect(socket.get(), address.get(), address.length) == 0) return true;
  if (errno != EINPROGRESS) return false;
  pollfd ready{.fd = socket.get(), .events = POLLOUT, .revents = 0};
  const Time end = Clock::now() + patience;
  int come = 0;
  do {  // a signal is no answer
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
    come = poll(&ready, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
  } while (come < 0 && errno == EINTR);
  if (come != 1) return false;
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  return error == 0;
}

}  // namespace starling
