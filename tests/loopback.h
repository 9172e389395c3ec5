// Workers that reach each other over this host's loopback.
#pragma once

#include <memory>

#include "starling/world/store.h"
#include "starling/world/world.h"

namespace starling {

// The world of worker 0 of `size`. The others have it too, but for their ranks.
inline World loopback_world(int size) {
  World world;
  world.size = size;
  world.token = "a secret of these tests";
  world.address = "127.0.0.1";
  world.store = std::make_shared<MemoryStore>();
  return world;
}

}  // namespace starling
