// The makers of Worlds, except the one for a process group (process_group.cpp).
#include "starling/world/world.h"

#include <algorithm>
#include <functional>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/failpoint.h"
#include "starling/core/text.h"
#include "starling/transport/c10d/launcher.h"
#include "starling/transport/c10d/private_folder.h"
#include "starling/transport/c10d/settings.h"
#include "starling/transport/c10d/socket.h"
#include "starling/transport/c10d/store.h"
#include "starling/transport/c10d/tcp_store.h"
#include "starling/transport/local/local.h"
#include "starling/world/environment.h"
#include "starling/world/folder_store.h"

namespace starling {
namespace {

// This host's address for the other workers. If all workers are on this host, it is the loopback
// address, whatever name the launcher has for the host.
SocketAddress own_address(const Variables& variable, const SocketAddress& master, const Launch& launch) {
  if (const auto chosen = address_from_environment(variable)) return *chosen;
  if (launch.local_size == launch.size) return resolve("127.0.0.1", 0);
  const std::optional<SocketAddress> local = local_address_towards(master);
  if (!local)
    throw UsageError(
        fmt::format("environment: {}={} cannot be reached from this host", launch.host_from, master.host()));
  return *local;
}

std::shared_ptr<FolderStore> folder_store(const std::string& folder) {
  if (!is_private(folder))
    throw UsageError(fmt::format("{}={}: the folder must be yours, and closed to others: chmod 700 it",
                                 kStoreFolder, in_quotes(folder)));
  return std::make_shared<FolderStore>(folder);
}

using HostStore = std::function<c10::intrusive_ptr<c10d::Store>(std::chrono::milliseconds deadline)>;

// How this worker can host the store at the address that all know. If this is a loopback address to
// rank 0's own host, or one that only the network translates, rank 0 serves all of its addresses.
// Null: it cannot, since the store is on another host, or the launcher's.
HostStore store_host(const Launch& launch, const SocketAddress& master, const std::string& own_address) {
  if (launch.launcher_hosts) return nullptr;
  const bool one_host = launch.local_size == launch.size;
  const bool is_mine = std::ranges::any_of(
      interfaces(), [&](const Interface& mine) { return mine.address.host() == master.host(); });
  const auto with = [port = launch.port](auto& host, const std::string& name) -> HostStore {
    return [=, &host](std::chrono::milliseconds deadline) { return host(name, port, deadline).store; };
  };
  if (one_host || (is_mine && !master.is_loopback())) return with(host_store, launch.host);
  return launch.rank == 0 ? with(host_store_everywhere, own_address) : nullptr;
}

// Rank 0 hosts the store. With rejoin, another worker of its host may have done so after it died.
c10::intrusive_ptr<c10d::Store> open_store(const Launch& launch, const SocketAddress& master,
                                           const HostStore& host, const World& world) {
  const auto join = [&] {
    return join_store(launch.host, launch.port, world.timeouts.meet, world.interrupted);
  };
  if (!host || launch.rank != 0) return join();
  try {
    return host(world.timeouts.meet);
  } catch (const Error& failure) {
    if (world.rejoin && somebody_listens(master, C10dStore::kPatience)) return join();
    throw Error(
        fmt::format("{}: rank 0 hosts the store: {} ({}) must be its host, and the port free there; "
                    "MASTER_ADDR and MASTER_PORT name others",
                    failure.what(), launch.host, launch.host_from));
  }
}

}  // namespace

World World::from_environment(Timeouts timeouts, const Interrupted& interrupted) {
  refuse_misspelt(process_variable_names());
  const Variables variable = process_variables();
  const std::optional<Launch> launch = read_launch(variable);
  timeouts = timeouts_from_environment(variable, timeouts);
  arm_failpoints(variable("STARLING_FAIL").value_or(""), launch ? launch->rank : 0, restarts_of(variable));
  if (!launch) {
    World world = alone();
    world.timeouts = timeouts;
    world.interrupted = interrupted;
    return world;
  }
  World world;
  world.timeouts = timeouts;
  world.interrupted = interrupted;
  world.make_transport =
      own_transport(transport_from_environment(variable, false), tls_from_environment(variable));
  world.rank = launch->rank;
  world.size = launch->size;
  world.local_rank = launch->local_rank;
  world.local_size = launch->local_size;
  world.token = token_from_environment(variable);
  world.rejoin = rejoin_from_environment(variable);
  world.initial_size = initial_size_from_environment(variable, world.size);
  world.partition = partition_from_environment(variable);

  SocketAddress master;
  try {
    master = resolve(launch->host, launch->port);
  } catch (const Error& unknown) {
    throw UsageError(
        fmt::format("environment: {}='{}': {}", launch->host_from, launch->host, unknown.what()));
  }
  const SocketAddress address = own_address(variable, master, *launch);
  world.address = address.host();
  if (address.is_loopback() && world.local_size < world.size) {
    throw UsageError(fmt::format(
        "environment: {}='{}' is this host's loopback address {}, which the workers of other hosts "
        "cannot reach: set STARLING_SOCKET_IFNAME to the interface between the hosts",
        launch->host_from, launch->host, world.address));
  }
  if (!address.is_loopback() && world.token.empty()) {
    throw UsageError(
        fmt::format("environment: workers at {} would accept anybody: set STARLING_TOKEN_FILE (or "
                    "STARLING_TOKEN) to the same secret on all of them",
                    world.address));
  }
  if (!launch->store_folder.empty()) {
    world.store = folder_store(launch->store_folder);
  } else {
    const HostStore host = store_host(*launch, master, world.address);
    C10dStore::HostAgain host_again;
    if (host && world.rejoin) host_again = [host] { return host(C10dStore::kPatience); };
    world.store =
        std::make_shared<C10dStore>(c10::make_intrusive<c10d::PrefixStore>(
                                        "starling/" + launch->run, open_store(*launch, master, host, world)),
                                    C10dStore::kPatience, std::move(host_again));
  }
  world.fate = [store = world.store](int rank) {
    try {
      return store->look(fate_key(rank)).value_or("");
    } catch (const StoreLost&) {
      return std::string();
    }
  };
  if (world.token.empty()) {
    LocalToken made = token_on_this_host(*world.store, world.rank, timeouts.meet, interrupted);
    world.token = std::move(made.token);
    world.token_file = std::move(made.file);
  }
  return world;
}

std::string World::value_of(int of, const std::string& key, std::chrono::milliseconds deadline) const {
  std::string ended;
  try {
    return store->get(key, deadline, [&] { return !(ended = fate(of)).empty() || interrupted(); });
  } catch (const StoreLost&) {
    throw;
  } catch (const Error& missing) {
    throw Error(
        fmt::format("worker {} has not come: {}", of, ended.empty() ? missing.what() : "it " + ended));
  }
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
