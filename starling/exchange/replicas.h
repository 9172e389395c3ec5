// What the two ends of an edge know of each other: of one block, for each edge two copies which both ends have to the bit,
// the one that this worker has published there, and the neighbour's.
//
//   choose     the values of x that are farthest from what is published: by the largest |x - mine| of all edges
//   send       these values themselves with their indices (kernels/top_k.h): the same block to all neighbours
//   take       where a swap has committed: mine <- what I sent, theirs <- what came, at both ends
//
// A pair for each edge, and not one published copy for all neighbours: the swaps of one round commit or abort each for itself,
// so after an aborted one the neighbours know different things of a worker. What an edge has missed stays in |x - mine| until it
// is sent; nothing else is needed to heal it. That values are sent and not their differences makes no difference to the equation
// (a copy that takes C(x - copy) has x itself where C chooses), but then a copy is exact, and one block serves all edges
// whatever they have missed. The price is memory: 2 floats per value and edge.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "starling/exchange/sent_block.h"
#include "starling/kernels/top_k.h"

namespace starling {

// How far workers go towards each other in a round, where nobody says so. Measured on rings of 16 workers: with twice as much
// they go apart for all one_in from 16 on.
double default_gamma(int one_in);

struct Replicas {
  struct Edge {
    int rank = 0;
    std::vector<float> mine{}, theirs{};
  };
  // A block's values, in pieces that lie one after the other.
  using Values = std::span<const std::span<const float>>;

  // By rising rank. Both copies of each are x, which must be the same at all workers.
  void begin(std::span<const int> neighbours, Values x);

  // The wire block: what `top` chooses of x. `room`: memory to work in, for any block.
  void write(Values x, TopK top, void* block, std::vector<std::uint32_t>& room) const;

  // Of a committed swap: takes both blocks, and says what is to be mixed, theirs - mine with `gamma` times the weight. Valid
  // until the next one of the same edge. Swaps of one edge in the order of their rounds, each mixed before the next is taken.
  Arrival take(const Arrival& swap, TopK top, double gamma);

  bool begun = false;
  std::vector<Edge> edges{};
};

}  // namespace starling
