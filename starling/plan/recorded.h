// The common begin and end of all simulations: the workers' recorded iterations, and the results of
// the drawn ones.
#pragma once

#include <cstddef>
#include <vector>

#include "starling/plan/simulate.h"

namespace starling {

// A worker's recorded iterations, with the sums that a step needs.
struct Recorded {
  explicit Recorded(const Compute& compute);
  double until_step(std::size_t k) const { return before[k] + backward[(k + 1) * blocks - 1]; }

  std::size_t count = 0, blocks = 0;
  std::vector<double> before;    // [iteration]: data wait and forward
  std::vector<double> backward;  // [iteration][block]: up to and including this block
  std::vector<double> update;    // [iteration][block]
  std::vector<double> whole;     // [iteration]: all of it
};

// These throw UsageError if the parts do not fit together.
void check_fits(const Network& network, const Work& work, const Horizon& run);
std::vector<Recorded> recorded(const Work& work);

// About how far ahead the events of their simulation are.
double span_of(const std::vector<Recorded>& workers);

// The recorded iteration that a worker draws for iteration t.
std::size_t drawn_iteration(const Horizon& run, int worker, int t, std::size_t count);

// The end times of the workers' iterations.
class Ends {
 public:
  Ends(int workers, const Horizon& run);
  void add(int worker, int iteration, double time);  // each worker's iterations in order
  // The mean step, and the spread of single steps.
  Forecast forecast() const;

 private:
  const Horizon run_;
  std::vector<double> last_;   // by worker
  std::vector<double> sums_;   // by iteration, over the workers
  std::vector<double> steps_;  // the counted ones
};

}  // namespace starling
