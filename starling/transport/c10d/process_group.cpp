// World::from_process_group(). Every worker writes one card to the store and reads all of them. A
// card holds the host's identity, whether the user gave a token, the transport, and an address by
// which others may reach the host. So all workers know the same facts, and each draws its own
// conclusions.
#include "starling/transport/c10d/process_group.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <optional>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "starling/core/clock.h"
#include "starling/core/error.h"
#include "starling/core/failpoint.h"
#include "starling/transport/c10d/in_time.h"
#include "starling/transport/c10d/one_line.h"
#include "starling/transport/c10d/settings.h"
#include "starling/transport/c10d/socket.h"
#include "starling/transport/c10d/store.h"
#include "starling/transport/c10d/store_values.h"
#include "starling/world/token.h"

namespace starling {
namespace {

// The group's store, kept alive because rank 0's may serve all workers, and our own connection to
// it, behind a prefix. A wait in the group's connection does not block ours.
struct GroupStore {
  c10::intrusive_ptr<c10d::Store> groups;
  std::int64_t call;  // number of this call: keys of several worlds of one group differ by it
  C10dStore own;
};

std::shared_ptr<GroupStore> store_for_a_call(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                             Duration deadline, const Interrupted& interrupted) {
  const auto join = [store, rank] {
    const auto connection = store->clone();
    return std::pair(connection, connection->add(fmt::format("starling/worlds-of-{}", rank), 1));
  };
  try {
    const auto [connection, call] = in_time(join, [&, limit = Limit{deadline}] {
      limit();
      if (interrupted()) throw Error("interrupted");
    });
    return std::shared_ptr<GroupStore>(new GroupStore{
        store, call,
        C10dStore(c10::make_intrusive<c10d::PrefixStore>(fmt::format("starling/{}", call), connection))});
  } catch (const Overdue&) {
    throw Error(
        fmt::format("process group: rank {} cannot use the group's store: it has not answered within {:g} s",
                    rank, seconds(deadline)));
  } catch (const std::exception& failure) {
    throw Error(
        fmt::format("process group: rank {} cannot use the group's store: {}", rank, one_line(failure)));
  }
}

std::optional<SocketAddress> usable(const std::optional<SocketAddress>& address) {
  return address && !address->is_loopback() ? address : std::nullopt;
}

// Null if it is no TCPStore. It lives as long as `store`.
const c10d::TCPStore* tcp_store_in(const c10::intrusive_ptr<c10d::Store>& store) {
  return dynamic_cast<const c10d::TCPStore*>(without_prefix(store).get());
}

// The address from which this host reaches the store's host; nothing if the store does not tell its
// host.
std::optional<SocketAddress> address_towards_store(const c10::intrusive_ptr<c10d::Store>& store) {
  const c10d::TCPStore* const tcp = tcp_store_in(store);
  if (!tcp) return std::nullopt;
  try {
    return usable(local_address_towards(resolve(tcp->getHost(), tcp->getPort())));
  } catch (const Error&) {
    return std::nullopt;  // only the store's own resolver knows the name
  }
}

// The store's host, if by its name only workers of this host can reach the store; else empty.
std::string local_store_host(const c10::intrusive_ptr<c10d::Store>& store) {
  const c10d::TCPStore* const tcp = tcp_store_in(store);
  if (!tcp) return "";
  const std::string& host = tcp->getHost();
  return host == "localhost" || host == "::1" || host.starts_with("127.") ? host : "";
}

// The address of this host's own name, as Gloo selects it.
std::optional<SocketAddress> address_of_own_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return std::nullopt;
  std::vector<SocketAddress> named;
  try {
    named = resolve_all(name.data(), 0);
  } catch (const Error&) {
    return std::nullopt;
  }
  for (const SocketAddress& one : named) {
    for (const Interface& own : interfaces()) {
      if (own.address.host() == one.host() && !one.is_loopback()) return one;
    }
  }
  return std::nullopt;
}

// The name of a store on this host may resolve to loopback here. Then the route to another host
// gives the address.
std::optional<SocketAddress> address_towards_others(const std::vector<Card>& cards, const std::string& host) {
  for (const Card& card : cards) {
    if (card.host == host || card.address.empty()) continue;
    if (const auto own = usable(local_address_towards(resolve(card.address, 0)))) return own;
  }
  return std::nullopt;
}

}  // namespace

std::string host_identity() {
  std::string kernel;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), kernel);
  std::array<char, 256> text{};
  if (kernel.empty() && gethostname(text.data(), text.size() - 1) == 0) kernel = text.data();
  const ssize_t length = readlink("/proc/self/ns/net", text.data(), text.size());
  return fmt::format("{}/{}", kernel,
                     std::string_view(text.data(), length > 0 ? static_cast<std::size_t>(length) : 0));
}

World meet_at(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const Timeouts& timeouts,
              const Variables& variable, const std::string& host, c10d::Backend* backend,
              const Interrupted& interrupted) {
  World world;
  world.interrupted = interrupted;
  world.rank = rank;
  world.size = size;
  world.timeouts = timeouts_from_environment(variable, timeouts);
  world.partition = partition_from_environment(variable);
  const std::string transport = transport_from_environment(variable, backend != nullptr);
  const std::optional<TlsOptions> tls = tls_from_environment(variable);
  world.token = token_from_environment(variable);
  const std::optional<SocketAddress> chosen = address_from_environment(variable);
  std::optional<SocketAddress> address = usable(chosen);
  if (!chosen) address = address_towards_store(store);
  if (!chosen && !address) address = address_of_own_name();

  const Time end = Clock::now() + timeouts.meet;
  const auto left = [&] {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
        std::max(end - Clock::now(), Duration::zero()));
  };
  const auto kept = store_for_a_call(store, rank, timeouts.meet, interrupted);
  world.store = {kept, &kept->own};
  world.make_transport =
      transport == "c10d" ? group_transports(*backend, kept->call) : own_transport(transport, tls);
  const Card own{host, !world.token.empty(), transport, address ? address->host() : ""};
  world.store->set(fmt::format("worker-{}", rank), own.to_line());
  std::vector<Card> cards;
  for (int of = 0; of < size; ++of) {
    std::string line;
    try {
      line = world.store->get(fmt::format("worker-{}", of), left(), interrupted);
    } catch (const Error& missing) {
      throw Error(fmt::format("process group: worker {} has not come: {}", of, missing.what()));
    }
    cards.push_back(Card::from_line(line, of));
  }

  const auto shares_host = [&](const Card& card) { return card.host == host; };
  world.local_rank = static_cast<int>(std::count_if(cards.begin(), cards.begin() + rank, shares_host));
  world.local_size = static_cast<int>(std::count_if(cards.begin(), cards.end(), shares_host));

  // Somebody else has written to the store. A token in it would let that one in.
  if (const std::string here = local_store_host(store); !here.empty() && world.local_size < size) {
    const auto away = std::ranges::find_if_not(cards, shares_host);
    throw UsageError(
        fmt::format("process group: worker {} says that it is on another host, but all meet at "
                    "{}, which no other host reaches",
                    away - cards.begin(), here));
  }
  const auto differs = std::find_if(cards.begin(), cards.end(),
                                    [&](const Card& card) { return card.has_token != cards[0].has_token; });
  if (differs != cards.end()) {
    const int other = static_cast<int>(differs - cards.begin());
    throw UsageError(
        fmt::format("environment: worker {} has a token and worker {} has none: set STARLING_TOKEN_FILE (or "
                    "STARLING_TOKEN) to the same "
                    "secret on all workers, or on none",
                    cards[0].has_token ? 0 : other, cards[0].has_token ? other : 0));
  }
  for (int of = 0; of < size; ++of) {
    const std::string& other = cards[static_cast<std::size_t>(of)].transport;
    if (other != cards[0].transport && (other == "c10d" || cards[0].transport == "c10d")) {
      throw UsageError(
          fmt::format("environment: STARLING_TRANSPORT is {} on worker 0 and {} on worker {}: c10d must be "
                      "set on all workers or on none",
                      cards[0].transport, other, of));
    }
  }
  if (!own.has_token && world.local_size == size) {
    LocalToken made = token_on_this_host(*world.store, rank, left(), interrupted);
    world.token = std::move(made.token);
    world.token_file = std::move(made.file);
  } else if (!own.has_token) {
    if (rank == 0) world.store->set("token", random_token());
    world.token = world.store->get("token", left(), interrupted);
  }

  if (chosen) {
    address = chosen;
  } else if (world.local_size == size) {
    address = resolve("127.0.0.1", 0);
  } else if (!address) {
    address = address_towards_others(cards, host);
  }
  if (!address || (address->is_loopback() && world.local_size < size)) {
    throw UsageError(fmt::format(
        "environment: worker {} has {}, and other workers are on other hosts: set STARLING_SOCKET_IFNAME to "
        "the interface "
        "between the hosts",
        rank, address ? "the loopback address " + address->host() : "no address that others could know"));
  }
  world.address = address->host();
  return world;
}

World World::from_process_group(c10d::ProcessGroup& group, Timeouts timeouts,
                                const Interrupted& interrupted) {
  const c10::intrusive_ptr<c10d::Store> store = group.getStore();
  if (!store)
    throw UsageError(
        "process group: it was made without a store, at which workers could meet: give its constructor one");
  refuse_misspelt(process_variable_names());
  const Variables variable = process_variables();
  if (rejoin_from_environment(variable) || variable("STARLING_INITIAL_SIZE")) {
    throw UsageError(
        "environment: STARLING_REJOIN and STARLING_INITIAL_SIZE are not for a process group, whose workers "
        "stay from its start to its end: go without init_process_group()");
  }
  arm_failpoints(variable("STARLING_FAIL").value_or(""), group.getRank(), restarts_of(variable));
  c10::intrusive_ptr<c10d::Backend> backend;
  try {
    backend = group.getBackend(c10::DeviceType::CPU);
  } catch (const std::exception&) {
    // The group serves tensors on GPUs only, like NCCL's. Only edges by the group need more.
    if (variable("STARLING_TRANSPORT") == "c10d") {
      throw UsageError(
          "environment: STARLING_TRANSPORT='c10d' needs a process group with a backend for tensors on the "
          "CPU, as init_process_group(\"cpu:gloo,cuda:nccl\") makes it");
    }
  }
  return meet_at(store, group.getRank(), group.getSize(), timeouts, variable, host_identity(), backend.get(),
                 interrupted);
}

}  // namespace starling
