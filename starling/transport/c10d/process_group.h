// A World from a store, a rank and a size alone, as a process group has them: World::from_process_group() and its tests.
#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "starling/transport/c10d/group_transport.h"
#include "starling/world/environment.h"
#include "starling/world/world.h"

namespace starling {

// Equal for workers that reach each other by loopback, different for others: kernel and network namespace.
std::string host_identity();

// What World::from_process_group() does, for a worker on the host of this identity. Without a backend payloads cannot go by
// the group.
World meet_at(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const Timeouts& timeouts,
              const Variables& variable, const std::string& host, c10d::Backend* backend = nullptr,
              const Interrupted& interrupted = nobody);

}  // namespace starling
