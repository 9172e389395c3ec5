// c10d's TCPStore, which torchrun also hosts.
#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "starling/core/wait.h"

namespace starling {

// Serves the store at `host` and `port` (0: any free one), at this address alone, and joins it.
// Throws Error.
struct HostedStore {
  c10::intrusive_ptr<c10d::Store> store;
  int port;
};
HostedStore host_store(const std::string& host, int port, std::chrono::milliseconds deadline);
// Serves it at all of this machine's addresses, and joins it at `host`.
HostedStore host_store_everywhere(const std::string& host, int port, std::chrono::milliseconds deadline);

// Joins the store that another process serves. Throws Error if it cannot be reached within the
// deadline, or when it is interrupted.
c10::intrusive_ptr<c10d::Store> join_store(const std::string& host, int port,
                                           std::chrono::milliseconds deadline,
                                           const Interrupted& interrupted = nobody);

}  // namespace starling
