// c10d's TCPStore, which torchrun also hosts.
#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "starling/core/wait.h"

namespace starling {

// Serves the store at `host` and `port` (0: any free one) and joins it. A loopback host serves
// loopback only. Any other host serves all interfaces, because workers elsewhere may know this host
// by another address. Throws Error.
struct HostedStore {
  c10::intrusive_ptr<c10d::Store> store;
  int port;
};
HostedStore host_store(const std::string& host, int port, std::chrono::milliseconds deadline);

// Joins the store that another process serves. Throws Error if it cannot be reached within the
// deadline, or when it is interrupted.
c10::intrusive_ptr<c10d::Store> join_store(const std::string& host, int port,
                                           std::chrono::milliseconds deadline,
                                           const Interrupted& interrupted = nobody);

}  // namespace starling
