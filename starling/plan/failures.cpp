#include "starling/plan/failures.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace starling {

double checkpoint_period(const Failures& f, int hosts) {
  if (f.rate == 0) return std::numeric_limits<double>::infinity();
  return std::sqrt(2 * f.checkpoint / (hosts * f.rate));
}

double lost_to_restarts(const Failures& f, int hosts) {
  if (f.rate == 0) return 0;
  const double Tc = checkpoint_period(f, hosts);
  const double writing = Tc > 0 ? f.checkpoint / Tc : 0;
  return std::min(1.0, writing + (f.restart + Tc / 2) * hosts * f.rate);
}

double lost_to_absence(const Failures& f, int neighbours) {
  return std::min(1.0, f.rate * (f.away + neighbours * f.silent));
}

}  // namespace starling
