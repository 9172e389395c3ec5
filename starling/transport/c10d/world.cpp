// How a World comes about. The transports are chosen here, since whoever trains needs both.
#include "starling/world/world.h"

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string_view>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include "starling/core/error.h"
#include "starling/transport/c10d/socket.h"
#include "starling/transport/c10d/store.h"
#include "starling/transport/c10d/tcp_store.h"
#include "starling/transport/local/local.h"
#include "starling/transport/tcp/tcp.h"

namespace starling {
namespace {

// Environment variables. An empty one counts as not set.
std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (!value || !*value) return std::nullopt;
  return value;
}

std::string required(const char* name) {
  const std::optional<std::string> value = variable(name);
  if (!value) {
    throw UsageError(
        fmt::format("environment: {} is not set: start the workers with torchrun or with "
                    "`starling train --workers N`, which set RANK, WORLD_SIZE, LOCAL_RANK, "
                    "LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
                    name));
  }
  return *value;
}

int required_integer(const char* name, int least, int most) {
  const std::string text = required(name);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    throw UsageError(
        fmt::format("environment: {}='{}' is not an integer from {} to {}", name, text, least, most));
  }
  return value;
}

// The token is a secret: its file must be the owner's alone.
std::string token_from_file(const std::string& path) {
  const auto refuse = [&](std::string_view why) {
    throw UsageError(fmt::format("environment: STARLING_TOKEN_FILE='{}' {}", path, why));
  };
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status{};
  if (file.get() < 0 || fstat(file.get(), &status) != 0)
    refuse(fmt::format("cannot be read: {}", std::strerror(errno)));
  if (!S_ISREG(status.st_mode)) refuse("is not a regular file");
  if (status.st_mode & (S_IRWXG | S_IRWXO)) refuse("can be reached by group or others: chmod 600 it");
  char buffer[4096];
  const ssize_t length = read(file.get(), buffer, sizeof buffer);
  if (length < 0) refuse(fmt::format("cannot be read: {}", std::strerror(errno)));
  if (length == sizeof buffer) refuse(fmt::format("is longer than {} bytes", sizeof buffer - 1));
  std::string token(buffer, static_cast<std::size_t>(length));
  token.erase(token.find_last_not_of(" \t\r\n") + 1);
  if (token.empty()) refuse("is empty");
  return token;
}

std::string token_from_environment() {
  if (const auto path = variable("STARLING_TOKEN_FILE")) return token_from_file(*path);
  return variable("STARLING_TOKEN").value_or("");
}

SocketAddress address_of_interface(const char* variable_name, const std::string& name) {
  std::set<std::string> names;
  for (const Interface& one : interfaces()) {
    if (one.name == name) return one.address;
    names.insert(one.name);
  }
  throw UsageError(
      fmt::format("environment: {}='{}' is no network interface that is up and has an address: there are {}",
                  variable_name, name, fmt::join(names, ", ")));
}

// Of this host, as the other workers reach it. Where all workers are on this host, that is its loopback, whatever name
// the launcher has for the host.
SocketAddress own_address(const SocketAddress& master, bool one_host) {
  for (const char* name : {"STARLING_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}) {
    if (const auto interface = variable(name)) return address_of_interface(name, *interface);
  }
  if (one_host) return resolve("127.0.0.1", 0);
  const std::optional<SocketAddress> local = local_address_towards(master);
  if (!local) {
    throw UsageError(
        fmt::format("environment: MASTER_ADDR={} cannot be reached from this host", master.host()));
  }
  return *local;
}

}  // namespace

World World::from_environment(Timeouts timeouts) {
  if (!variable("RANK") && !variable("WORLD_SIZE")) {
    World world = alone();
    world.timeouts = timeouts;
    return world;
  }
  World world;
  world.timeouts = timeouts;
  world.make_transport = make_tcp_transport;
  world.size = required_integer("WORLD_SIZE", 1, 1 << 20);
  world.rank = required_integer("RANK", 0, world.size - 1);
  world.local_size = required_integer("LOCAL_WORLD_SIZE", 1, world.size);
  world.local_rank = required_integer("LOCAL_RANK", 0, world.local_size - 1);
  const std::string host = required("MASTER_ADDR");
  const int port = required_integer("MASTER_PORT", 1, 65535);
  world.token = token_from_environment();

  SocketAddress master;
  try {
    master = resolve(host, port);
  } catch (const Error& unknown) {
    throw UsageError(fmt::format("environment: MASTER_ADDR='{}': {}", host, unknown.what()));
  }
  const SocketAddress address = own_address(master, world.local_size == world.size);
  world.address = address.host();
  if (address.is_loopback() && world.local_size < world.size) {
    throw UsageError(
        fmt::format("environment: MASTER_ADDR='{}' is this host's loopback address {}, which the workers of "
                    "other hosts cannot reach: set STARLING_SOCKET_IFNAME to the interface between the "
                    "hosts",
                    host, world.address));
  }
  if (!address.is_loopback() && world.token.empty()) {
    throw UsageError(
        fmt::format("environment: workers at {} would accept anybody: set STARLING_TOKEN_FILE (or "
                    "STARLING_TOKEN) to the same secret on all of them",
                    world.address));
  }

  // As torch's own rendezvous: torchrun hosts the store unless it says otherwise, and a restart must not find what the
  // last attempt left in it.
  const bool launcher_hosts = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  const c10::intrusive_ptr<c10d::Store> store = !launcher_hosts && world.rank == 0
                                                    ? host_store(host, port, timeouts.meet).store
                                                    : join_store(host, port, timeouts.meet);
  const std::string attempt = variable("TORCHELASTIC_RESTART_COUNT").value_or("0");
  world.store =
      std::make_shared<C10dStore>(c10::make_intrusive<c10d::PrefixStore>("starling/" + attempt, store));
  return world;
}

World World::alone() { return threads(1).front(); }

std::vector<World> World::threads(int n) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto make_transport = local_transports();
  std::vector<World> worlds(static_cast<std::size_t>(n));
  for (int rank = 0; rank < n; ++rank) {
    World& world = worlds[static_cast<std::size_t>(rank)];
    world.rank = world.local_rank = rank;
    world.size = world.local_size = n;
    world.address = "127.0.0.1";
    world.store = std::make_shared<C10dStore>(store);
    world.make_transport = make_transport;
  }
  return worlds;
}

}  // namespace starling
