// A worker of a run to which others come back.
#pragma once

#include "tests/optim/flock.h"

namespace starling {

inline World seat_of(const World& world) {
  World seat = world;
  seat.rejoin = true;
  seat.token = "sixteen bytes or more";
  seat.optimizers = std::make_shared<std::atomic<int>>(0);  // of a new process
  return seat;
}

}  // namespace starling
