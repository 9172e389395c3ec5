// The user's settings of a worker's edges, from the environment, with any launcher.
#pragma once

#include <optional>
#include <string>

#include "starling/transport/c10d/socket.h"
#include "starling/world/environment.h"
#include "starling/world/world.h"

namespace starling {

// From STARLING_TOKEN_FILE, else from STARLING_TOKEN; empty if neither is set. Throws UsageError if
// the file is empty or if other users have access to it.
std::string token_from_environment(const Variables& variable);

// STARLING_TRANSPORT: "mapped" (the default), "tcp" or, with a process group, "c10d". Throws
// UsageError for other values.
std::string transport_from_environment(const Variables& variable, bool has_group);

// The transport that "mapped" or "tcp" names.
decltype(World::make_transport) own_transport(const std::string& name);

// The address of the interface that STARLING_SOCKET_IFNAME names, else GLOO_SOCKET_IFNAME; nothing
// if neither is set. In a list such as "eth0,eth1" it is the first one that is up. Throws
// UsageError if there is no such interface.
std::optional<SocketAddress> address_from_environment(const Variables& variable);

}  // namespace starling
