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
    whole.push_back(until_step(k));
    for (std::size_t b = 0; b < blocks; ++b) whole.back() += compute.update[b][k];
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
    if (!fits)
      throw UsageError(
          fmt::format("simulate: worker {} must have the same number of recorded times for data, forward, "
                      "and each of the {} blocks' backward and update",
                      all.size(), blocks));
    all.emplace_back(compute);
  }
  return all;
}

void check_fits(const Network& network, const Work& work, const Horizon& run) {
  if (network.host_of.empty()) throw UsageError("simulate: no workers");
  if (work.compute.empty() || work.block_bytes.empty() || work.mean_bytes.size() != work.block_bytes.size())
    throw UsageError("simulate: no recorded work, or no blocks");
  if (run.warm_up < 0 || run.iterations <= run.warm_up)
    throw UsageError(
        fmt::format("simulate: {} iterations, {} of them warm-up, leave none", run.iterations, run.warm_up));
  if (work.every < 1 || work.mean_every < 0 || work.mean_every % work.every != 0)
    throw UsageError(fmt::format("simulate: a mean every {} steps is no multiple of an exchange every {}",
                                 work.mean_every, work.every));
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

Ends::Ends(int workers, const Horizon& run)
    : run_(run), last_(static_cast<std::size_t>(workers)), sums_(static_cast<std::size_t>(run.iterations)) {
  steps_.reserve(last_.size() * static_cast<std::size_t>(run.iterations - run.warm_up));
}

void Ends::add(int worker, int iteration, double time) {
  double& last = last_[static_cast<std::size_t>(worker)];
  if (iteration >= run_.warm_up) steps_.push_back(time - last);
  last = time;
  sums_[static_cast<std::size_t>(iteration)] += time;
}

Forecast Ends::forecast() const {
  const auto first = static_cast<std::size_t>(run_.warm_up);
  const double begin = first == 0 ? 0 : sums_[first - 1];
  Forecast outcome;
  outcome.step = (sums_.back() - begin) / static_cast<double>(steps_.size());
  std::vector<double> steps = steps_;
  const auto tenth = static_cast<std::ptrdiff_t>((steps.size() - 1) / 10);
  const auto low = steps.begin() + tenth, high = steps.end() - 1 - tenth;
  std::nth_element(steps.begin(), low, steps.end());
  outcome.low = *low;
  std::nth_element(steps.begin(), high, steps.end());
  outcome.high = *high;
  return outcome;
}

}  // namespace starling
