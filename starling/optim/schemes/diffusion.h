// Diffusion with a correction, the step of exact-diffusion and d2:
//
//   phi_i     = keep (x_i + e_i) - lr u(g_i(x_i))       keep: AdamW's decay, else 1
//   x_i(t+1)  = phi_i + share Sum_j W_ij (phi_j - phi_i)
//   e_i(t+1)  = e_i   + share Sum_j W_ij (phi_j - phi_i)            e_i = 0 at first
//
// e is what mixing has moved the worker by so far. The step gives it that once more, so that at the
// optimum of all workers' losses the worker's own gradient and e cancel. The sum of all e is zero.
// A swap that aborts moves neither x nor e. One that is mended k rounds late moves e once, and x k
// times more, as the steps since then would have. So the sum of all x is kept.
//
// A worker that misses rounds adds no e for them, as it takes no gradient for them. Both cancel at
// the optimum, so it stays there, and the others stay too: the sum of their e is that of their
// gradients' steps. Until then the sum of all x lacks this worker's e for each missed round. The
// missed blocks are counted as ExchangeStatistics::directed_aborted. If the members change, a
// worker that goes on at a later step lacks its e in the same way. Then all begin with e = 0.
//
// The papers write phi with the last psi(t) = x(t) - lr u(t) as phi(t+1) = psi(t+1) + x(t+1) -
// psi(t). It is the same, since e(t+1) = x(t+1) - psi(t).
//
// If a worker dies, it takes its e along. The others' e then have a sum, which keeps their optimum
// off until e = 0 is set on all: by restart() (a checkpoint is loaded).
#pragma once

#include <cstdint>

#include "starling/optim/schemes/vectors.h"

namespace starling {

class Diffusion : public Scheme {
 public:
  explicit Diffusion(const SchemeParts& parts, float share = 1) : Scheme(parts), share_(share) {}
  void attach(const Connection& connection) override {
    Scheme::attach(connection);
    e_.attach(blocks_);
    round_ = missed_ = 0;
  }
  void restart() override { e_.zero(), round_ = 0; }
  void take_mean() override { round_ = 0; }
  ExchangeStatistics counted() const override {
    ExchangeStatistics counted;
    counted.directed_aborted = missed_;
    return counted;
  }
  void state(StateVisitor& visitor) override { e_.state(visitor, "correction"); }
  void step() override;

 private:
  void adapt_and_send();

  const float share_;
  std::uint64_t round_ = 0;   // the last one that this worker took part in; 0: none yet
  std::uint64_t missed_ = 0;  // blocks, since attach()
  Vectors e_;
};

inline constexpr RefusedWire kTooCoarse[] = {{Wire::int4, "its correction adds up what int4 rounds"}};
inline constexpr SchemeTraits kDiffusionTraits{
    .path = Path::inside,
    .edges = EdgeKind::lasting,
    .refused_wires = kTooCoarse,
    .all_values = "its correction is added in every step, so every value must be mixed in every step",
    .exact = true,
    .kept = 1,
    .at_a_join = "the corrections begin anew, at 0"};

}  // namespace starling
