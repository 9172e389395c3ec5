// Schemes whose workers average in pairs beside training (gossip/gossip.h): as often as the clock says, on the
// transport's thread. A step waits for nobody:
//
//   d   <- what the local rule makes of the parameters, less what they were when they were last renewed
//   x, x~ <- the momentum up to now;  x + d, x~ + d
//   the parameters <- x
//
// The parameters are this thread's copy of x, so the gradient is at what x was one step ago: averagings since
// then are in x, not yet in the copy. All that was done to the parameters between two steps is in d.
//
// Of push-sum x is z, and what the rule does is done to w z: z + d / w, but AdamW's decay is of z. Other
// changes of the parameters (clamped weights, an average that is kept) are of z as it is: they are taken
// over first.
//
// Of a parameter in bf16 or fp16 the copy is its master: x, and what goes over the wire, are fp32's numbers.
// Of parameters on a GPU x and x~ are there too (optim/cuda/cuda.h), and a step waits for backward.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "starling/gossip/gossip.h"
#include "starling/optim/cuda/cuda.h"
#include "starling/optim/schemes/scheme.h"

namespace starling {

class PairScheme : public Scheme {
 public:
  void attach(const Connection& connection) override;
  void detach() override;
  void begin() override;
  // While gossip stands still: x and x~ become the parameters.
  void restart() override;
  void step() override;
  // "clock"; with momentum "x_tilde", with weights "weights".
  void state(StateVisitor& visitor) override;
  std::vector<double> weights() const override { return weighs_ ? w_ : std::vector<double>(); }
  void stand_by() override;
  void pause() override;
  void resume() override;
  void renew() override;
  ExchangeStatistics counted() const override;
  std::optional<GossipStatistics> gossip() const override {
    return gossip_ ? std::optional(gossip_->statistics()) : std::nullopt;
  }

 protected:
  explicit PairScheme(const SchemeParts& parts) : Scheme(parts), settings_(parts.options.scheme) {}
  // Says in `options`, which have the rest already, who averages with whom and what an averaging moves.
  virtual void choose(GossipOptions& options, const Schedule& schedule) const;

  void adapt() { local_.all(weighs_ ? w_ : std::vector<double>()); }
  // Calls f, which may write it, with y of each block, as floats in its order.
  void each_y(const std::function<void(const Block&, const at::Tensor& y)>& f);
  // Adds to x and x~ what was done to the parameters since they were last renewed, and copies x into the
  // parameters: a gradient was made.
  void give();

  const SchemeSettings settings_;

 private:
  std::vector<std::unique_ptr<HeldBlock>> hold(const GossipOptions& options);
  void renew(std::size_t block, const Held& held, double scale);
  void set_weights(std::span<const double> weights);
  void catch_up();
  void lead();

  bool momentum_ = false, weighs_ = false;
  bool fresh_ = true;  // attached, and begin() has not been called since
  bool standing_by_ = false, paused_ = false;
  std::vector<at::Tensor> taken_;                       // by block, the parameters as they were last renewed
  std::vector<double> w_;                               // by block, of push-sum; else 1
  std::vector<std::shared_ptr<GossipStream>> streams_;  // of GPUs
  std::vector<HeldOnDevice*> on_device_;                // by block, gossip's; null: on the CPU
  std::unique_ptr<Gossip> gossip_;
};

// Options of all schemes in pairs.
inline constexpr std::string_view kClocks[] = {"poisson", "fixed"};
inline constexpr SchemeOption kRate{
    .name = "rate",
    .standard = 1.0,
    .range = between(1e-3, 1000),
    .meaning =
        "averagings that a worker takes part in, in the time of one gradient (swarm: of local_steps "
        "gradients); a push counts at both ends"};
inline constexpr SchemeOption kClock{
    .name = "clock",
    .standard = std::string_view("poisson"),
    .choices = kClocks,
    .meaning = "poisson: a worker asks for averagings at random times, as in theory; fixed: at even ones"};
inline constexpr SchemeOption kPairOptions[] = {kRate, kClock};

// What all of them refuse, and take.
constexpr SchemeTraits pair_traits(EdgeKind edges = EdgeKind::symmetric) {
  return {.path = Path::pairs, .edges = edges, .all_values = "an averaging is of all values", .on_gpu = true};
}

// Throw UsageError if the schedule's graph is not for them.
void check_pairs(const SchemeInfo&, const SchemeSettings& settings, const Schedule& schedule);
void check_pushes(const SchemeInfo&, const SchemeSettings& settings, const Schedule& schedule);

}  // namespace starling
