// The counts of an optimizer: Optimizer::statistics().
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace starling {

// Counts of this worker since construction.
struct Statistics {
  std::uint64_t rounds = 0;          // exchanges started; asynchronous: averagings of all blocks
  std::uint64_t skipped_rounds = 0;  // made by the others without this worker, which was behind
  // The last round begun, as all workers count: those before this worker came count too. 0:
  // asynchronous.
  std::uint64_t round = 0;
  std::uint64_t committed = 0;       // blocks mixed, summed over edges
  std::uint64_t aborted = 0;         // blocks not mixed: a neighbour was late, gone or faulty
  std::uint64_t jumped = 0;          // of these, refused by this worker (Options::jump_guard)
  std::uint64_t late = 0;            // blocks mixed late, after a connection was mended
  std::uint64_t bytes_sent = 0;      // by the edges; all-reduce: computed, 2M(n-1)/n each time
  std::uint64_t bytes_in_place = 0;  // of these, by shared memory
  std::uint64_t payload_sent = 0;    // of these, without headers, heartbeats and other control
  // `aborted` on directed edges, and blocks of missed rounds whose correction is not made up for:
  // each moves the mean a little. None with push-sum.
  std::uint64_t directed_aborted = 0;
  double seconds_waiting = 0;  // in step(), for neighbours; all-reduce: in backward()
  std::uint64_t skipped = 0;   // steps whose gradient was not finite (skip_not_finite)
  std::vector<int> lost;       // workers that are gone
  // With World::rejoin, the number of the members' present epoch. How often this worker has come
  // into the run with another worker's state: started again, left out, or not sound.
  std::uint64_t membership = 0;
  std::uint64_t joins = 0;
  // Blocks taken from each neighbour, outside of groups that take their mean. Both ends of an edge
  // in both directions count the same up to a round: each mixes the other's block, or none does.
  std::map<int, std::uint64_t> mixed{};

  // Schemes in pairs: this worker's averagings on each edge, since the last parameter group was
  // added. Their time unit is a gradient of this worker, or a stretch of local steps.
  struct Edge {
    int rank = 0;                   // the neighbour
    std::uint64_t averaged = 0;     // averagings of all blocks
    double gap = 0;                 // mean time between two of them
    std::uint64_t longest_gap = 0;  // so far
    double distance = 0;            // RMS of x_j - x_i in the last one
  };
  std::vector<Edge> edges{};  // sorted by rank
  // Requests for averagings by this worker, in the same time. A neighbour that answers after the
  // timeout may find this worker in another averaging; its blocks then count as aborted.
  struct Questions {
    std::uint64_t asked = 0;
    std::uint64_t refused = 0;     // of these, by a busy neighbour; retried later
    std::uint64_t unanswered = 0;  // of these, without an answer in time
    std::uint64_t dropped = 0;     // due, but too many were, or the neighbour was away
  };
  Questions questions{};
  // Gradients of all workers in the same time, or those in whole stretches of local steps, as far
  // as requests and answers have told this worker.
  std::uint64_t gradients_of_all = 0;
  // Effective rate: averagings per gradient. This is also how many other workers have moved x, in
  // the mean, between reading a gradient's x and applying the gradient.
  double rate = 0;
  // RMS of the edges' distances, at no cost. Over all workers and edges it is sqrt(2) times the
  // consensus distance if neighbours are as far away as other workers; less on sparse graphs.
  double distance = 0;
};

}  // namespace starling
