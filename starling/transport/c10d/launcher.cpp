#include "starling/transport/c10d/launcher.h"

#include "starling/transport/c10d/tcp_store.h"
#include "starling/world/world.h"

namespace starling {

struct MeetingPoint::Server {
  HostedStore hosted;
};

MeetingPoint::MeetingPoint() : server_(new Server{host_store("127.0.0.1", 0, Timeouts{}.meet)}) {}

MeetingPoint::~MeetingPoint() = default;

int MeetingPoint::port() const { return server_->hosted.port; }

}  // namespace starling
