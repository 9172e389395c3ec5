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
  // With local steps, the next steps change the parameters while a block is in flight. So they are
  // kept as they were sent. A scheme may need them in any case.
  explicit AheadScheme(const SchemeParts& parts) : AheadScheme(parts, parts.options.every > 1) {}
  AheadScheme(const SchemeParts& parts, bool keeps_sent) : Scheme(parts), keeps_sent_(keeps_sent) {}

  // update_and_send() and mix_and_send() of this exchange.
  void update_and_send(Block& block, std::span<const Arrival> arrived, std::optional<float> scale);
  void mix_and_send(Block& block);

  const bool keeps_sent_;
  Vectors sent_{Fresh::parameter};  // if kept: the parameters as they were sent last
};

}  // namespace starling
