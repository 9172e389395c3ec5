// How mixing and the local rule are combined. One algorithm, one file.
#pragma once

#include <cstdint>

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
  // Since construction; what the edges have sent is counted by the exchange.
  virtual std::uint64_t bytes_computed() const { return 0; }
  virtual double seconds_waiting() const { return 0; }
};

}  // namespace starling
