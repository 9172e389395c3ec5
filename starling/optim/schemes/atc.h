// The step of atc.cpp, in which other schemes have their part (quasi_global_adam.cpp).
#pragma once

#include <optional>

#include "starling/optim/schemes/scheme.h"

namespace starling {

class Atc : public Scheme {
 public:
  explicit Atc(const SchemeParts& parts) : Scheme(parts) {}

  void step() override {
    if (local_.is_fused()) return step(local_.scale());
    local_.all();
    for (Block& block : blocks_) mix_and_send(exchange(), block, {});
    take();
  }

 protected:
  // With one of Starling's rules.
  void step(std::optional<float> scale) {
    for (Block& block : blocks_) update_and_send(exchange(), block, local_.rule(block), {}, scale);
    take();
  }

 private:
  void take() {
    for (Block& block : blocks_) mix(block, finish(exchange(), block), {});
  }
};

}  // namespace starling
