// A2CiD2: asynchronous gossip with continuous momentum. Nabli, Belilovsky & Oyallon 2023 (arXiv
// 2306.08289).
//
// Every worker holds x and x~, which are equal at first. Time is counted in gradients: tau is the
// time since the last event, divided by the worker's own average time of one gradient.
//
//   before any event   dx = eta (x~ - x) dt, dx~ = eta (x - x~) dt, over tau:
//                      x, x~ <- (1+q)/2 x + (1-q)/2 x~,  (1-q)/2 x + (1+q)/2 x~
//                      with q = exp(-2 eta tau)
//   gradient           x <- x + d,  x~ <- x~ + d              d: the local rule's change of x
//   averaging of i,j   x_i <- x_i + alpha (x_j - x_i),  x~_i <- x~_i + alpha~ (x_j - x_i),
//                      and j mirrored
//
// Both ends mix up to the averaging BEFORE they send, and take the same difference. Averaging
// therefore keeps the sum of all x, and that of all x~; the momentum keeps x + x~ of each worker.
// Both together keep the sum of all x + x~. (The authors' program sends x without its latest
// mixing: do_send in p2p_averaging.py, github.com/AdelNabli/ACiD @257dea2.)
//
// chi1 and chi2 measure how slowly the graph brings workers together, by its slowest mode and by
// its worst edge (L: rates.h):
//
//   chi1 = 1 / lambda_2(L)       chi2 = 1/2 max over edges of (e_i - e_j)^T L^+ (e_i - e_j)
//   eta  = 1 / (2 sqrt(chi1 chi2))     alpha = 1/2     alpha~ = 1/2 sqrt(chi1 / chi2)
//
// The constants suit the rate for which they were made. So tau is at most the time that lies
// between two averagings at that rate, for each averaging since the last event, and some kept ones
// (Gossip::kMostCredit). On a network too slow for the rate, x and x~ would otherwise be equal
// before each averaging, and x~ would overshoot further each time, without end.
//
// With eta = 0 this is AD-PSGD (ad_psgd.h): there is then no x~.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <span>

#include "starling/gossip/rates.h"

namespace starling {

struct A2cid2 {
  static constexpr double alpha = 0.5;
  double chi1 = 0, chi2 = 0;
  double eta = 0;
  double alpha_tilde = 0.5;
};

// The paper's constants, unless they are given. Throws UsageError if the graph falls apart, and
// names a worker that no path reaches.
A2cid2 a2cid2_of(const PairRates& rates, std::optional<double> eta = {},
                 std::optional<double> alpha_tilde = {});

// The constants with alpha~ no larger than this, those of a graph that mixes faster: chi2 stays,
// and alpha~ = 1/2 sqrt(chi1 / chi2) gives chi1, and so eta.
A2cid2 at_most(A2cid2 constants, double alpha_tilde);

// (1-q)/2: the share of x~ in x after the continuous momentum over eta tau.
template <class T>
T momentum_share(double eta_tau) {
  return static_cast<T>(-std::expm1(-2 * eta_tau) / 2);
}
// Applies that momentum; nothing if x~ is empty.
void mix_momentum(std::span<float> x, std::span<float> x_tilde, double eta_tau);
void mix_momentum(std::span<double> x, std::span<double> x_tilde, double eta_tau);

// Calls f(at, x, x~) for parts of x and x~, from `at` on. A part stays in the caches during the
// momentum and f.
template <class F>
void in_parts(std::span<float> x, std::span<float> x_tilde, const F& f) {
  constexpr std::size_t kPart = 1 << 13;
  for (std::size_t at = 0; at < x.size(); at += kPart) {
    const std::size_t n = std::min(kPart, x.size() - at);
    f(at, x.subspan(at, n), x_tilde.empty() ? x_tilde : x_tilde.subspan(at, n));
  }
}

}  // namespace starling
