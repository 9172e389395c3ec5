// How mixing and the local rule are combined. One algorithm, one file.
#pragma once

#include "starling/exchange/exchange.h"

namespace starling {

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
  // Gossip that goes on between steps stands still, and the parameters are up to date, from pause() to resume().
  virtual void pause() {}
  virtual void resume() {}
  // Since construction, beside what the exchange has counted.
  virtual ExchangeStatistics counted() const { return {}; }
};

}  // namespace starling
