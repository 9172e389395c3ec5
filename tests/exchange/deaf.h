// A worker's end of the edges that hears nothing.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "starling/transport/transport.h"

namespace starling {

struct Deaf : TransportHandler {
  void connected(int) override {}
  void disconnected(int, const std::string&) override {}
  void lost(int, const std::string&) override {}
  std::span<std::byte> place(int, const Frame&) override { return {}; }
  void received(int, const Frame&, std::span<const std::byte>, bool) override {}
};

}  // namespace starling
