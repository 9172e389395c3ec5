// All transports behind one interface, so that one test suite checks them against the contract of
// transport.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "starling/transport/transport.h"
#include "tests/log_lines.h"
#include "tests/loopback.h"

namespace starling {

class Fabric {
 public:
  virtual ~Fabric() = default;
  virtual std::unique_ptr<Transport> make(int rank, const std::string& channel) = 0;
};

// Transports from World::make_transport, over this host's loopback.
class Loopback : public Fabric {
 public:
  Loopback(int size, decltype(World::make_transport) transport) : world_(loopback_world(size)) {
    world_.make_transport = std::move(transport);
  }
  std::unique_ptr<Transport> make(int rank, const std::string& channel) override {
    world_.rank = rank;
    return world_.make_transport(world_, channel);
  }

 protected:
  World world_;
};

// A world on this host's loopback, and the lines of its log.
struct LoggedWorld {
  explicit LoggedWorld(int size) : world(loopback_world(size)) {
    world.token = "the right token of this run";
    world.log = log.log(Level::debug);
  }
  LogLines log;
  World world;
};

using MakeFabric = std::unique_ptr<Fabric> (*)(int size);

struct Kit {
  std::string name;
  MakeFabric make;
  std::uint64_t own_frames = 0;  // most bytes that the transport itself adds on a connection
  bool in_frames = true;         // bulk goes as frames, with their headers
};
// The transports that this program checks.
std::vector<Kit> kits();

std::unique_ptr<Fabric> make_local_fabric(int size);
std::unique_ptr<Fabric> make_tcp_fabric(int size);
std::unique_ptr<Fabric> make_sealed_fabric(int size);  // over TCP, with seals
std::unique_ptr<Fabric> make_tls_fabric(int size);     // over TCP, with TLS
std::unique_ptr<Fabric> make_mapped_fabric(int size);

}  // namespace starling
