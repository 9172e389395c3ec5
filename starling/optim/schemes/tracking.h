// Tracking in rounds, the step of gradient-tracking and momentum-tracking. tracking_adam.cpp tracks
// second moments by it.
//
//   m_i <- beta m_i + g_i(x_i)                     beta = 0: m is the gradient;  m = 0 at first
//   y_i <- Sum_j W_ij y_j + m_i(new) - m_i(old)    y = 0 at first
//   x_i <- Sum_j W_ij x_j - lr u(y_i)              u: the rule's direction, from y in place of g
//
// y follows the mean of all workers' m: the sum of all y is that of all m, whatever W is, and
// mixing makes them equal. So when all x agree at the common optimum, y is 0 there, though the
// workers' own gradients are not. x and y travel together, twice the bytes of CTA. As with CTA,
// they have a whole iteration to cross the link.
//
// A gradient that is not finite must not spread: its segment keeps its earlier m. A lost swap keeps
// both sums. If a worker dies, its m stays in the others' y until y = m = 0 is set on all workers:
// by restart() (a checkpoint is loaded). The rule reads y from .grad.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "starling/optim/schemes/tracked.h"
#include "starling/optim/schemes/vectors.h"

namespace starling {

class Tracking : public Scheme {
 public:
  explicit Tracking(const SchemeParts& parts, double beta = 0) : Scheme(parts), beta_(beta) {}
  void attach(const Connection& connection) override;
  void begin() override;
  bool sends_ahead() const override { return true; }
  void restart() override;
  void take_mean() override {}
  void state(StateVisitor& visitor) override;
  void step() override;

 protected:
  // With all y mixed: brings them up to date, and writes to .grad what the rule reads.
  virtual void track();

  Vectors y_, m_;

 private:
  void mix_tracked();
  std::span<const Arrival> arrived(const Block& block) const {
    return arrived_[static_cast<std::size_t>(block.index)];
  }
  void update_and_send(Block& block, const Rule& rule, std::span<const Arrival> arrived,
                       std::optional<float> scale);

  const double beta_;
  Tracker tracker_;
  std::vector<std::span<const Arrival>> arrived_;  // by block, in this step
};

inline constexpr std::string_view kOneGrid = "x and y would share one grid, and their sizes differ";
inline constexpr RefusedWire kNoTracked[] = {
    {Wire::fp16, kTooSmallForFp16}, {Wire::int8, kOneGrid}, {Wire::int4, kOneGrid}};
inline constexpr SchemeTraits kTrackingTraits{.contents = {.vectors = 2},
                                              .refused_wires = kNoTracked,
                                              .exact = true,
                                              .sums_gradients = true,
                                              .agrees = Agrees::as_topology,
                                              .kept = 2,
                                              .at_a_join = "the tracked gradients begin anew"};

}  // namespace starling
