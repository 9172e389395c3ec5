// The meeting place of the workers of `starling train --workers N`: a store that the parent process
// hosts.
#pragma once

#include <memory>

namespace starling {

// Serves on 127.0.0.1 only, at a free port, as long as it lives. Workers reach it with
// MASTER_ADDR=127.0.0.1, MASTER_PORT=port() and TORCHELASTIC_USE_AGENT_STORE=True in their
// environment.
class MeetingPoint {
 public:
  MeetingPoint();
  ~MeetingPoint();

  int port() const;

 private:
  struct Server;
  std::unique_ptr<Server> server_;
};

}  // namespace starling
