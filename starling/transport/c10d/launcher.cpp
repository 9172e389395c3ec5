#include "starling/transport/c10d/launcher.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <fmt/format.h>

#include "starling/transport/c10d/store.h"
#include "starling/transport/c10d/tcp_store.h"
#include "starling/world/world.h"

namespace starling {

std::string store_prefix(const std::string& run) { return "starling/" + run; }
std::string fate_key(int rank) { return fmt::format("fate/{}", rank); }

struct MeetingPoint::Server {
  HostedStore hosted = host_store("127.0.0.1", 0, Timeouts{}.meet);
  C10dStore workers{c10::make_intrusive<c10d::PrefixStore>(store_prefix("0"), hosted.store)};
};

MeetingPoint::MeetingPoint() : server_(std::make_unique<Server>()) {}

MeetingPoint::~MeetingPoint() = default;

int MeetingPoint::port() const { return server_->hosted.port; }

void MeetingPoint::ended(int rank, const std::string& how) const {
  try {
    server_->workers.set(fate_key(rank), how);
  } catch (const StoreLost&) {
    // The workers have lost it too, and find out by themselves.
  }
}

}  // namespace starling
