#include "starling/transport/c10d/tcp_store.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <fmt/format.h>

#include "starling/core/clock.h"
#include "starling/core/error.h"
#include "starling/transport/c10d/in_time.h"
#include "starling/transport/c10d/one_line.h"
#include "starling/transport/c10d/socket.h"

namespace starling {
namespace {

c10::intrusive_ptr<c10d::TCPStore> make_store(const std::string& host, const c10d::TCPStoreOptions& options) {
  try {
    return c10::make_intrusive<c10d::TCPStore>(host, options);
  } catch (const std::exception& failure) {
    throw Error(fmt::format("cannot {} the store at {} port {}: {}", options.isServer ? "host" : "reach",
                            host, options.port, one_line(failure)));
  }
}

// TCPStore would wait by itself, but it writes a backtrace to stderr for every attempt.
void wait_for_server(const std::string& host, int port, Time end, std::chrono::milliseconds deadline,
                     const Interrupted& interrupted) {
  const std::vector<SocketAddress> addresses = resolve_all(host, port);
  const auto serves = [](const SocketAddress& address) {
    return somebody_listens(address, std::chrono::milliseconds(1'000));
  };
  while (std::none_of(addresses.begin(), addresses.end(), serves)) {
    if (Clock::now() >= end) {
      throw Error(
          fmt::format("cannot reach the store at {} port {}: nobody has listened there for {} ms: is the "
                      "launcher, or else rank 0, running, and are MASTER_ADDR and MASTER_PORT right?",
                      host, port, deadline.count()));
    }
    if (interrupted())
      throw Error(fmt::format("interrupted while nobody served the store at {} port {}", host, port));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

// At the listening socket, or else, as TCPStore does by itself, at all addresses.
HostedStore host_at(const std::string& host, int port, std::chrono::milliseconds deadline,
                    std::optional<Descriptor> listener) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = true;
  // torch.distributed.init_process_group() in this process may want the same port.
  options.multiTenant = true;
  options.waitWorkers = false;
  options.timeout = deadline;
  if (listener) {
    options.port = static_cast<std::uint16_t>(bound_address(*listener).port());
    options.masterListenFd = listener->release();
  }
  const c10::intrusive_ptr<c10d::TCPStore> store = make_store(host, options);
  return {store, store->getPort()};
}

}  // namespace

HostedStore host_store(const std::string& host, int port, std::chrono::milliseconds deadline) {
  return host_at(host, port, deadline, listen_at(resolve(host, port)));
}

HostedStore host_store_everywhere(const std::string& host, int port, std::chrono::milliseconds deadline) {
  return host_at(host, port, deadline, std::nullopt);
}

c10::intrusive_ptr<c10d::Store> join_store(const std::string& host, int port,
                                           std::chrono::milliseconds deadline,
                                           const Interrupted& interrupted) {
  const Time end = Clock::now() + deadline;
  wait_for_server(host, port, end, deadline, interrupted);
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.timeout = deadline;
  options.waitWorkers = false;
  // TCPStore's constructor waits without limit if the listener is no store.
  return in_time(
      [host, options] { return make_store(host, options); },
      [&] {
        if (Clock::now() >= end)
          throw Error(fmt::format(
              "cannot reach the store at {} port {}: somebody listens there, but has not answered "
              "as a store within {} ms: does another program hold the port?",
              host, port, deadline.count()));
        if (interrupted())
          throw Error(fmt::format("interrupted while joining the store at {} port {}", host, port));
      });
}

}  // namespace starling
