// Toy: CTA that mixes in every k-th step only. A real scheme names its paper here.
//
//   x_i <- Sum_j W_ij x_j                  before every k-th step, inside it
//   x_i <- x_i - lr u(g_i)                 g_i is the gradient at the x_i before mixing
#include <cmath>

#include "starling/optim/schemes/scheme.h"

namespace starling {
namespace {

class Toy final : public Scheme {
 public:
  explicit Toy(const SchemeParts& parts)
      : Scheme(parts), stride_(SchemeSettings(options_.scheme).integer("stride")) {}

  void step() override {
    if (++steps_ % stride_ == 0) {
      for (Block& block : blocks_) mix_and_send(exchange(), block, {});
      for (Block& block : blocks_) mix(block, finish(exchange(), block), {});
    }
    local_.all();
  }

  void restart() override { steps_ = 0; }
  void state(StateVisitor& visitor) override {
    visitor.numbers("toy.steps", {.fresh = {0},
                                  .now = {static_cast<double>(steps_)},
                                  .set = [this](auto given) { steps_ = std::llround(given[0]); },
                                  .refusal =
                                      [](auto given) {
                                        return given[0] >= 0 && given[0] < 0x1p53 ? "" : "wants steps from 0";
                                      }});
  }

 private:
  const std::int64_t stride_;  // k
  std::int64_t steps_ = 0;
};

constexpr SchemeOption kOptions[] = {{
    .name = "stride",
    .standard = std::int64_t{1},
    .range = between(1, 1000),
    .meaning = "k, steps between two exchanges",
}};

}  // namespace

extern constinit const SchemeInfo scheme_toy{
    .name = "toy",
    .summary = "a toy: CTA that mixes in every k-th step",
    .paper = "none",
    .traits = {.path = Path::inside},
    .options = kOptions,
    .make = make<Toy>,
};

}  // namespace starling
