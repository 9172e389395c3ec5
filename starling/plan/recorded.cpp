#include "starling/plan/recorded.h"

#include <algorithm>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/random.h"

namespace starling {

Recorded::Recorded(const Compute& compute) : count(compute.forward.size()), blocks(compute.backward.size()) {
  for (std::size_t k = 0; k < count; ++k) {
    before.push_back(compute.data_wait[k] + compute.forward[k]);
    double sum = 0;
    for (std::size_t b = 0; b < blocks; ++b) {
      backward.push_back(sum += compute.backward[b][k]);
      update.push_back(compute.update[b][k]);
    }
  }
}

std::vector<Recorded> recorded(const Work& work) {
  std::vector<Recorded> all;
  for (const Compute& compute : work.compute) {
    const std::size_t blocks = work.block_bytes.size(), count = compute.forward.size();
    bool fits = count > 0 && compute.data_wait.size() == count && compute.backward.size() == blocks &&
                compute.update.size() == blocks;
    for (std::size_t b = 0; fits && b < blocks; ++b)
      fits = compute.backward[b].size() == count && compute.update[b].size() == count;
    if (!fits) throw UsageError("simulate: a worker's recorded times do not fit the blocks");
    all.emplace_back(compute);
  }
  return all;
}

void check_fits(const Network& network, const Work& work, const Horizon& run) {
  if (network.host_of.empty()) throw UsageError("simulate: no workers");
  if (work.compute.empty() || work.block_bytes.empty() || work.mean_bytes.size() != work.block_bytes.size())
    throw UsageError("simulate: no recorded work, or no blocks");
  if (run.warm_up < 0 || run.iterations <= run.warm_up)
    throw UsageError(fmt::format("simulate: {} iterations, of which {} to warm up, leave none",
                                 run.iterations, run.warm_up));
  for (int host : network.host_of) {
    if (host < 0 || static_cast<std::size_t>(host) >= network.hosts.size())
      throw UsageError(fmt::format("simulate: there is no host {}", host));
  }
}

double span_of(const std::vector<Recorded>& workers) {
  double span = 0;
  for (const Recorded& own : workers) span = std::max(span, 2 * own.until_step(0));
  return span;
}

std::size_t drawn_iteration(const Horizon& run, int worker, int t, std::size_t count) {
  return count == 1
             ? 0
             : random_bits({run.seed, static_cast<std::uint64_t>(worker), static_cast<std::uint64_t>(t)}) %
                   count;
}

Forecast outcome_of(const std::vector<double>& ends, const Horizon& run) {
  Forecast outcome;
  const auto first = static_cast<std::size_t>(run.warm_up), last = ends.size() - 1;
  const double begin = first == 0 ? 0 : ends[first - 1];
  outcome.step = (ends[last] - begin) / static_cast<double>(last - first + 1);
  std::vector<double> steps;
  for (std::size_t t = first; t <= last; ++t) steps.push_back(ends[t] - (t == 0 ? 0 : ends[t - 1]));
  std::sort(steps.begin(), steps.end());
  outcome.low = steps[(steps.size() - 1) / 10];
  outcome.high = steps[steps.size() - 1 - (steps.size() - 1) / 10];
  return outcome;
}

}  // namespace starling
