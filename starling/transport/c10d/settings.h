// What the user's variables say of this worker's edges, whoever started it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "starling/transport/c10d/socket.h"
#include "starling/world/environment.h"
#include "starling/world/world.h"

namespace starling {

// Of STARLING_TOKEN_FILE or STARLING_TOKEN; empty where neither is set. Throws UsageError where the file is not its owner's
// alone, or empty.
std::string token_from_environment(const Variables& variable);

// What STARLING_TRANSPORT names. Throws UsageError.
decltype(World::make_transport) transport_from_environment(const Variables& variable);

// The address of the interface that STARLING_SOCKET_IFNAME names, or else GLOO_SOCKET_IFNAME; nothing where neither is set.
// Throws UsageError where there is no such interface.
std::optional<SocketAddress> address_from_environment(const Variables& variable);

}  // namespace starling
