// CECA-2P: Ding et al., "DSGD-CECA: Decentralized SGD with Communication-Optimal Exact Consensus
// Algorithm", ICML 2023 (arXiv 2306.00256). One send and one receive a round give the exact mean
// after ceil(log2 n) rounds for EVERY n. No schedule of one vector can do that. The price is a
// second vector.
//
//   i   this worker; ranks are modulo n
//   x   the mean of the first values of workers i-e .. i
//   h   the mean of the first values of the e others among them, i-e .. i-1
//
// The rounds are the bits of n - 1 from the top, with e = 0 at first:
//
//   1   y = x of worker i - (e+1):   x <- (x + y) / 2               h <- (e h + (e+1) y) / (2e+1)
//   0   y = h of worker i - e:       x <- ((e+1) x + e y) / (2e+1)  h <- (h + y) / 2
//
// and then e <- 2e + bit. At the end e + 1 = n, and x is the mean of all. In both cases the sent
// vector takes half of y, and the other vector takes the share w of y.
#pragma once

#include <cstdint>
#include <vector>

#include "starling/topology/graph.h"

namespace starling {

struct CecaRound {
  int e = 0;
  bool sends_x = true;  // the bit
  int distance() const { return sends_x ? e + 1 : e; }
  double w() const { return static_cast<double>(distance()) / (2 * e + 1); }
  bool operator==(const CecaRound&) const = default;
};

// For n >= 1 workers; one alone has a round without neighbours.
std::vector<CecaRound> ceca_2p_rounds(int n);

// Let s be the vector that a round sends, and d the other vector minus s. Both rows above are then
//
//   s <- s + 1/2 (y - s)        d <- (1 - w) d + (w - 1/2)(y - s)
//   s <- s + d, d <- -d         if the next round sends the other vector
//
// All of this is linear in the y - s of a round, so two numbers give its later effect.
struct CecaShares {
  double s = 0;
  double d = 0;
};

// The effect of round `from`'s y - s after the y of round `now` is mixed. Rounds are counted from 1
// and continue in cycles.
CecaShares late_shares(const std::vector<CecaRound>& rounds, std::uint64_t from, std::uint64_t now);

// The effect of round `now`'s d, with its y mixed, when round `next` begins. In the rounds between
// them no y came: y is then the worker's own s.
CecaShares shares_of_d(const std::vector<CecaRound>& rounds, std::uint64_t now, std::uint64_t next);

// The arcs of a round, with the weight of the sent vector. Not symmetric: a failed exchange moves
// the mean.
Schedule ceca_2p(int n);

}  // namespace starling
