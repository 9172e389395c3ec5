// The meeting place of the workers of `starling train --workers N`: a store that the parent process
// hosts.
#pragma once

#include <memory>
#include <string>

namespace starling {

// The workers' part of a launcher's store, and the key in it of a worker's World::fate.
std::string store_prefix(const std::string& run);
std::string fate_key(int rank);

// Serves on 127.0.0.1 only, at a free port, as long as it lives. Workers reach it with
// MASTER_ADDR=127.0.0.1, MASTER_PORT=port(), TORCHELASTIC_USE_AGENT_STORE=True and
// TORCHELASTIC_RESTART_COUNT=0 in their environment.
class MeetingPoint {
 public:
  MeetingPoint();
  ~MeetingPoint();

  int port() const;
  // Tells the workers, which may be waiting for this one, how it has ended.
  void ended(int rank, const std::string& how) const;

 private:
  struct Server;
  std::unique_ptr<Server> server_;
};

}  // namespace starling
