// The common knowledge of both ends of an edge. Each edge has, for a block, two copies that both
// ends hold to the bit: the values that this worker has published there, and the neighbour's.
//
//   choose     the values of x that differ most from the published ones: by the largest |x - mine|
//              of all edges
//   send       these values themselves with their indices (kernels/top_k.h): the same block to all
//              neighbours. Or nothing: an empty block
//   take       when a swap has committed: mine <- the values that I sent, theirs <- those that
//              came, at both ends
//
// Each edge has a pair, instead of one published copy for all neighbours. The swaps of one round
// commit or abort independently, so after an aborted one the neighbours know different values of a
// worker. Values that an edge has missed stay in |x - mine| until they are sent; healing needs
// nothing else. Sending values instead of differences does not change the equation (a copy that
// takes C(x - copy) has x itself where C chooses). But a copy is then exact, and one block serves
// all edges, whatever they have missed. The price is memory: 2 floats per value and edge.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "starling/exchange/sent_block.h"
#include "starling/kernels/top_k.h"

namespace starling {

// The default step of workers towards each other in a round. Measured on rings of 16 workers: with
// twice as much they diverge for all one_in from 16 on.
double default_gamma(int one_in);

struct Replicas {
  struct Edge {
    int rank = 0;
    std::vector<float> mine{}, theirs{};
  };
  // A block's values, in consecutive pieces.
  using Values = std::span<const std::span<const float>>;

  // By rising rank. Both copies of each are x, which must be the same at all workers.
  void begin(std::span<const int> neighbours, Values x);

  // |x - mine|^2 of each edge.
  std::vector<double> distances(Values x) const;

  // Writes the wire block: the values of x that `top` chooses. `room`: work memory, for any block.
  void write(Values x, TopK top, void* block, std::vector<std::uint32_t>& room) const;

  // For a committed swap: takes both blocks, and returns what is to be mixed, theirs - mine with
  // `gamma` times the weight. Valid until the next one of the same edge. Swaps of one edge come in
  // the order of their rounds, and each is mixed before the next is taken.
  Arrival take(const Arrival& swap, TopK top, double gamma);

  std::vector<Edge> edges{};
};

}  // namespace starling
