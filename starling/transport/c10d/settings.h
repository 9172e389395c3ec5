// What the user's variables say of this worker's edges, whoever started it.
#pragma once

#include <optional>
#include <string>

#include "starling/transport/c10d/socket.h"
#include "starling/world/environment.h"
#include "starling/world/world.h"

namespace starling {

// Of STARLING_TOKEN_FILE or STARLING_TOKEN; empty where neither is set. Throws UsageError where the file is not its owner's
// alone, or empty.
std::string token_from_environment(const Variables& variable);

// STARLING_TRANSPORT: "mapped", which is also what holds where it is not set, "tcp", "nccl" or, if there is a process group, "c10d".
// Throws UsageError where it is something else.
std::string transport_from_environment(const Variables& variable, bool has_group);

// World::carrier: the name, if it is none of a transport whose connections are our own.
std::string carrier_of(const std::string& transport);

// What "mapped", "tcp" and "nccl" stand for.
decltype(World::make_transport) own_transport(const std::string& name);

// The address of the interface that STARLING_SOCKET_IFNAME names, or else GLOO_SOCKET_IFNAME; nothing where neither is set.
// Throws UsageError where there is no such interface.
std::optional<SocketAddress> address_from_environment(const Variables& variable);

}  // namespace starling
