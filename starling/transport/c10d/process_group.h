// A World from the store, rank and size of a process group, for World::from_process_group() and its
// tests.
#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "starling/transport/c10d/group_transport.h"
#include "starling/world/environment.h"
#include "starling/world/world.h"

namespace starling {

// Kernel and network namespace: equal for workers that reach each other by loopback, different for
// others.
std::string host_identity();

// Does what World::from_process_group() does, for a worker on the host of this identity. Without a
// backend, payloads cannot go by the group.
World meet_at(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const Timeouts& timeouts,
              const Variables& variable, const std::string& host, c10d::Backend* backend = nullptr,
              const Interrupted& interrupted = nobody);

}  // namespace starling
