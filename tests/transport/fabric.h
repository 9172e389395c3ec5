// All transports behind one face, so that one suite of tests holds them to the contract of transport.h.
#pragma once

#include <memory>
#include <string>

#include "starling/transport/transport.h"

namespace starling {

class Fabric {
 public:
  virtual ~Fabric() = default;
  virtual std::unique_ptr<Transport> make(int rank, const std::string& channel) = 0;
};

using MakeFabric = std::unique_ptr<Fabric> (*)(int size);

std::unique_ptr<Fabric> make_local_fabric(int size);
std::unique_ptr<Fabric> make_tcp_fabric(int size);
std::unique_ptr<Fabric> make_mapped_fabric(int size);

}  // namespace starling
