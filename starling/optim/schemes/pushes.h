// Push-sum in rounds, which push_sum.cpp and push_diging.cpp share: Kempe, Dobra & Gehrke 2003.
// Graphs may be directed, and workers may have different influence:
//
//   p_ij    the share of itself that worker j pushes to i; with its own share, columns sum to 1
//   x, w    are pushed: x_i <- Sum_j p_ij x_j,  w_i <- Sum_j p_ij w_j;  w = 1 at first
//   z       x / w: the parameters
//
// x is never stored. In terms of z, a push mixes with weights that depend on the w. When the mass m
// = p_ij w_j arrives at z_j,
//
//   w_i <- w_i + m        z_i <- z_i + m / w_i (z_j - z_i)
//   w_j <- w_j - m        z_j does not change
//
// So the kernel of all schemes does it in the same pass. Other vectors that are pushed with x, and
// kept divided by w, mix in the same way. The wire carries q_j, which is z_j rounded, and both ends
// use q_j. The sender's mass leaves at q_j: z_j <- z_j - m / w_j (q_j - z_j). So every wire keeps
// the sum of all w, and that of all w z, even if the parameters change while a push is in flight.
//
// Lost pushes: an aborted push stays with its sender. This is another p, whose columns still sum to
// 1. A push in doubt counts as given, and comes back if it was not taken (exchange.h). So mass is
// at one place or, until then, at none. A dead worker takes its mass along. A worker to which
// nobody pushes any more would give away all it has: below kLeastWeight it keeps its mass.
//
// Each block has its own w, since its pushes commit separately. w travels behind the block's values
// (exchange/weight.h).
#pragma once

#include <cstddef>
#include <vector>

#include "starling/exchange/weight.h"
#include "starling/optim/schemes/scheme.h"
#include "starling/optim/schemes/weights.h"

namespace starling {

class PushScheme : public Scheme {
 public:
  void attach(const Connection& connection) override;
  void restart() override;
  void state(StateVisitor& visitor) override;
  std::vector<double> weights() const override { return w_; }

 protected:
  // `vectors`: of a wire block, as in the scheme's Contents.
  explicit PushScheme(const SchemeParts& parts, std::size_t vectors = 1) : Scheme(parts), vectors_(vectors) {}

  double w(const Block& block) const { return w_[static_cast<std::size_t>(block.index)]; }
  // The vectors are written to `outgoing`: writes w behind them, and starts the exchange.
  void push(const Block& block, const Outgoing& outgoing, bool finite) { sender(block, outgoing)(finite); }
  // The same for a pass that is over later, with the w of now.
  Then sender(const Block& block, const Outgoing& outgoing);
  // Waits for the block's pushes, and updates w. Returns the mixing of z. All vectors of the wire
  // block mix so.
  std::vector<Arrival> absorb(const Block& block);

 private:
  std::size_t values(const Block& block) const { return vectors_ * static_cast<std::size_t>(block.length); }

  const std::size_t vectors_;
  std::vector<double> w_;  // by block
};

// The traits of all schemes of pushes in rounds.
constexpr SchemeTraits push_traits(std::size_t vectors = 1) {
  return {.edges = EdgeKind::directed,
          .contents = {.exchanged = Exchanged::pushes, .vectors = vectors, .tail = kWeightValues},
          .refused_wires = kNoModularPushes,
          .all_values = "a push is of all values of a block",
          .agrees = Agrees::as_topology,
          .at_a_join = "the weights begin anew, at 1"};
}

// Throws UsageError unless every worker keeps a share of itself: its push may be lost to it, and so
// may what it would receive.
void check_shares(const Options& options, const SchemeSettings& settings, const Schedule& schedule);

}  // namespace starling
