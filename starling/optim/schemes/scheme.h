// How mixing and the local rule are combined. One algorithm, one file.
#pragma once

#include <functional>

#include "starling/exchange/exchange.h"
#include "starling/optim/rules.h"

namespace starling {

using RuleOf = std::function<const Rule&(int group)>;  // of a parameter group

class Scheme {
 public:
  virtual ~Scheme() = default;
  // Sends what the first step needs of the neighbours (and again after anything that voids what was in flight).
  virtual void begin() = 0;
  // Whether begin() and step() leave a round in flight, to be finished in the next step.
  virtual bool sends_ahead() const { return false; }
  virtual void step() = 0;
  // Whether the backward passes from here on average gradients, in a scheme that does; see NoSync.
  virtual void set_sync(bool) {}
  // This worker makes no gradient until resume(), or the next step(); gossip goes on.
  virtual void stand_by() {}
  // Gossip that goes on between steps stands still from pause() to resume(), or to the next step().
  virtual void pause() {}
  virtual void resume() {}
  // While it does: the parameters become what it has made of them.
  virtual void renew() {}
  // Since construction, beside what the exchange has counted.
  virtual ExchangeStatistics counted() const { return {}; }
};

}  // namespace starling
