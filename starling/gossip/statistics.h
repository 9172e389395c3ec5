// The counts of a worker's gossip.
#pragma once

#include <cstdint>
#include <vector>

#include "starling/gossip/pairing.h"

namespace starling {

struct GossipStatistics {
  struct Neighbour {
    int rank = 0;
    std::uint64_t begun = 0;     // averagings
    std::uint64_t averaged = 0;  // averagings with all blocks
    std::uint64_t received = 0;  // averagings that received data: all, except for pushes
    std::uint64_t aborted = 0;   // blocks
    std::uint64_t late = 0;      // blocks averaged late, after a broken connection was restored
    // Gradients of this worker between two averagings on this edge, including those before the
    // first and since the last one: their mean, and their maximum so far.
    double gap = 0;
    std::uint64_t longest_gap = 0;
    // RMS of x_j - x_i at the begin of the last averaging; for pushes, of the last one from j.
    double distance = 0;
  };
  std::vector<Neighbour> neighbours;  // by rising rank
  PairingStatistics pairing;
  std::uint64_t gradients = 0;
  // The known number of all workers' gradients: requests and answers carry it.
  std::uint64_t gradients_of_all = 0;
  // Averagings with all blocks; per gradient that is the effective rate.
  std::uint64_t averaged = 0;
  std::uint64_t jumped = 0;     // aborted blocks that this worker has refused (exchange/jump_guard.h)
  double gradient_seconds = 0;  // current time of a gradient
  std::uint64_t bytes_sent = 0, payload_sent = 0;
};

}  // namespace starling
