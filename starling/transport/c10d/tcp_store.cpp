#include "starling/transport/c10d/tcp_store.h"

#include <algorithm>
#include <exception>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include <fmt/format.h>

#include "starling/core/clock.h"
#include "starling/core/error.h"
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

// TCPStore's constructor waits without limit if the listener is no store. So a thread calls it,
// which is left behind in that case, and holds only its arguments.
c10::intrusive_ptr<c10d::TCPStore> join_in_time(const std::string& host, const c10d::TCPStoreOptions& options,
                                                Time end, std::chrono::milliseconds deadline,
                                                const Interrupted& interrupted) {
  std::promise<c10::intrusive_ptr<c10d::TCPStore>> promise;
  auto joined = promise.get_future();
  std::thread([host, options, promise = std::move(promise)]() mutable {
    try {
      promise.set_value(make_store(host, options));
    } catch (...) {
      promise.set_exception(std::current_exception());
    }
  }).detach();
  while (joined.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready) {
    if (Clock::now() >= end) {
      throw Error(
          fmt::format("cannot reach the store at {} port {}: somebody listens there, but has not answered "
                      "as a store within {} ms: does another program hold the port?",
                      host, options.port, deadline.count()));
    }
    if (interrupted())
      throw Error(fmt::format("interrupted while joining the store at {} port {}", host, options.port));
  }
  return joined.get();
}

}  // namespace

HostedStore host_store(const std::string& host, int port, std::chrono::milliseconds deadline) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = true;
  // torch.distributed.init_process_group() in this process may want the same port.
  options.multiTenant = true;
  options.waitWorkers = false;
  options.timeout = deadline;
  const SocketAddress address = resolve(host, port);
  if (address.is_loopback()) {  // TCPStore itself would listen on all interfaces
    Descriptor listener = listen_at(address);
    options.port = static_cast<std::uint16_t>(bound_address(listener).port());
    options.masterListenFd = listener.release();
  }
  const c10::intrusive_ptr<c10d::TCPStore> store = make_store(host, options);
  return {store, store->getPort()};
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
  return join_in_time(host, options, end, deadline, interrupted);
}

}  // namespace starling
