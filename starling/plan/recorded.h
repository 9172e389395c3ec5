// What all simulations begin and end with: the workers' recorded iterations, and what came of those that were drawn.
#pragma once

#include <cstddef>
#include <vector>

#include "starling/plan/simulate.h"

namespace starling {

// A worker's recorded iterations, with what a step needs of them added up.
struct Recorded {
  explicit Recorded(const Compute& compute);
  double until_step(std::size_t k) const { return before[k] + backward[(k + 1) * blocks - 1]; }

  std::size_t count = 0, blocks = 0;
  std::vector<double> before;    // [iteration]: data wait and forward
  std::vector<double> backward;  // [iteration][block]: up to and with this block
  std::vector<double> update;    // [iteration][block]
};

// These throw UsageError where the parts do not fit together.
void check_fits(const Network& network, const Work& work, const Horizon& run);
std::vector<Recorded> recorded(const Work& work);

// About how far ahead the events of their simulation are.
double span_of(const std::vector<Recorded>& workers);

// Which of its recorded iterations a worker draws for iteration t.
std::size_t drawn_iteration(const Horizon& run, int worker, int t, std::size_t count);

// When the workers' iterations end.
class Ends {
 public:
  Ends(int workers, const Horizon& run);
  void add(int worker, int iteration, double time);  // of each worker one after the other
  // The mean step, and how long single ones were.
  Forecast forecast() const;

 private:
  const Horizon run_;
  std::vector<double> last_;   // of each worker
  std::vector<double> sums_;   // of each iteration, over the workers
  std::vector<double> steps_;  // that count
};

}  // namespace starling
