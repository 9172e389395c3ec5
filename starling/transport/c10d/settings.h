// The user's settings of a worker's edges, from the environment, with any launcher.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "starling/transport/c10d/socket.h"
#include "starling/transport/tcp/tcp.h"
#include "starling/world/environment.h"
#include "starling/world/world.h"

namespace starling {

// From STARLING_TOKEN_FILE, else from STARLING_TOKEN; empty if neither is set. Throws UsageError if
// the file is empty or if other users have access to it, or if the token is shorter than 16 bytes.
std::string token_from_environment(const Variables& variable);

// A random token for workers of one user on one host that were given none. Rank 0 writes it to a
// file that no other user may read, and the file's path to the store. The others read it there;
// they wait for rank 0 up to `deadline`. `file`, at rank 0, removes it. Throws Error.
struct LocalToken {
  std::string token;
  std::shared_ptr<void> file;
};
LocalToken token_on_this_host(Store& store, int rank, std::chrono::milliseconds deadline,
                              const Interrupted& interrupted);

// STARLING_TRANSPORT: "mapped" (the default), "tcp" or, with a process group, "c10d". Throws
// UsageError for other values, and for c10d with STARLING_TLS.
std::string transport_from_environment(const Variables& variable, bool has_group);

// STARLING_REJOIN: World::rejoin. Throws UsageError for values other than 0 and 1.
bool rejoin_from_environment(const Variables& variable);
// STARLING_INITIAL_SIZE: World::initial_size. Throws UsageError unless it is 1 to `size`, and if
// the other workers could not join.
std::optional<int> initial_size_from_environment(const Variables& variable, int size);

// STARLING_SILENT, in seconds: Timeouts::silent and what follows it. Throws UsageError unless it is
// 0.1 to 3600.
Timeouts timeouts_from_environment(const Variables& variable, const Timeouts& timeouts);

// STARLING_PARTITION: World::partition, "continue" or "pause". Throws UsageError for other values.
Partition partition_from_environment(const Variables& variable);

// STARLING_TLS: "psk" or, with STARLING_TLS_CERT, STARLING_TLS_KEY and STARLING_TLS_CA, "cert";
// nothing if it is unset. Throws UsageError for other values, for a file that is missing or
// superfluous, and for a key that other users can read.
std::optional<TlsOptions> tls_from_environment(const Variables& variable);

// The transport that "mapped" or "tcp" names.
decltype(World::make_transport) own_transport(const std::string& name, const std::optional<TlsOptions>& tls);

// The address of the interface that STARLING_SOCKET_IFNAME names, else GLOO_SOCKET_IFNAME; nothing
// if neither is set. In a list such as "eth0,eth1" it is the first one that is up. Throws
// UsageError if there is no such interface.
std::optional<SocketAddress> address_from_environment(const Variables& variable);

}  // namespace starling
