// Schemes that send the parameters at the end of a step and mix them in a later one: in the next,
// or with local steps between in the H-th (Options::every). A block then has H iterations to cross
// the link.
#pragma once

#include <span>

#include "starling/optim/schemes/scheme.h"
#include "starling/optim/schemes/vectors.h"

namespace starling {

class AheadScheme : public Scheme {
 public:
  void attach(const Connection& connection) override;
  void begin() override;
  void restart() override;
  bool sends_ahead() const override { return true; }
  void state(StateVisitor& visitor) override;

 protected:
  explicit AheadScheme(const SchemeParts& parts) : Scheme(parts) {}

  // update_and_send() and mix_and_send() of this exchange.
  void update_and_send(Block& block, std::span<const Arrival> arrived, std::optional<float> scale);
  void mix_and_send(Block& block);

 private:
  // The next steps change the parameters while a block is in flight.
  bool has_local_steps() const { return options_.every > 1; }

  Vectors sent_{Fresh::parameter};  // with local steps: the parameters as they were sent last
};

}  // namespace starling
