// Schemes whose workers average in pairs beside training (gossip/gossip.h), at the clock's times,
// on the transport's thread. A step waits for nobody:
//
//   d      <- parameters after the local rule, less their values at the last renewal
//   x, x~  <- the momentum up to now;  x + d, x~ + d
//   parameters <- x
//
// The parameters are this thread's copy of x. So the gradient is taken at the x of one step ago.
// Later averagings are in x, not yet in the copy. d contains every change of the parameters between
// two steps.
//
// With push-sum, x is z. The rule's change applies to w z: z + d / w. AdamW's decay applies to z.
// So do other changes of the parameters (clamped weights, an average that is kept). They are added
// to x first.
//
// For a parameter in bf16 or fp16, the copy is its master: x and the wire have fp32's values. For
// parameters on a GPU, x and x~ are there too (optim/cuda/cuda.h), and a step waits for backward().
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
  explicit PairScheme(const SchemeParts& parts) : Scheme(parts), settings_(parts.options.scheme) {}
  void attach(const Connection& connection) override;
  void detach() override;
  void begin() override;
  // While gossip stands still: sets x and x~ to the parameters.
  void restart() override;
  void step() override;
  // "clock"; with momentum "x_tilde"; with weights "weights".
  void state(StateVisitor& visitor) override;
  std::vector<double> weights() const override { return weighs_ ? w_ : std::vector<double>(); }
  void stand_by() override { standing_by_ |= gossip_->stand_by(); }
  void pause() override;
  void resume() override;
  void renew() override;
  ExchangeStatistics counted() const override;
  std::optional<GossipStatistics> gossip() const override {
    return gossip_ ? std::optional(gossip_->statistics()) : std::nullopt;
  }
  bool sent_finite() const override { return gossip_->sent_finite(); }
  Standing standing() const override { return gossip_->standing(); }
  std::vector<UsualDistance> usual() const override { return gossip_->usual(); }

 protected:
  // Sets, in `options`, the pairs and the algorithm. All other options are set already.
  virtual void choose(GossipOptions& options, const Schedule& schedule) const;

  void adapt() { local_.all(weighs_ ? w_ : std::vector<double>()); }
  // Calls f with each block's y, as floats in the block's order. f may write y.
  void each_y(const std::function<void(const Block&, const at::Tensor& y)>& f);
  // After a gradient: adds the changes of the parameters since the last renewal to x and x~, and
  // copies x into the parameters.
  void give();

  const SchemeSettings settings_;

 private:
  std::vector<std::unique_ptr<HeldBlock>> make_held_blocks(const Beside& beside);
  void renew(std::size_t block, const Held& held, double scale);
  void set_weights(std::span<const double> weights);
  void wait_for_torch();
  void let_torch_follow();

  bool momentum_ = false, weighs_ = false;
  bool fresh_ = true;  // attached, without begin() since
  bool standing_by_ = false, paused_ = false;
  std::vector<at::Tensor> taken_;                       // by block: parameters at the last renewal
  std::vector<double> w_;                               // by block: push-sum's w; else 1
  std::vector<std::shared_ptr<GossipStream>> streams_;  // on GPUs
  std::vector<HeldOnDevice*> on_device_;                // by block, gossip's own; null: on the CPU
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

// The traits of all schemes in pairs.
constexpr SchemeTraits pair_traits(EdgeKind edges = EdgeKind::symmetric) {
  return {.path = Path::pairs,
          .edges = edges,
          .all_values = "an averaging is of all values",
          .kept = 2,
          .at_a_join = "its clock goes on"};
}

// Throw UsageError if the schedule's graph does not suit the scheme.
void check_pairs(const Options&, const SchemeSettings& settings, const Schedule& schedule);
void check_pushes(const Options&, const SchemeSettings& settings, const Schedule& schedule);

}  // namespace starling
