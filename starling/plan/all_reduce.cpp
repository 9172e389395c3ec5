#include "starling/plan/all_reduce.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <set>
#include <utility>

#include "starling/plan/events.h"
#include "starling/plan/recorded.h"

namespace starling {

double all_reduce_seconds(const Network& network, double bytes, const std::vector<AllReduceTime>& measured) {
  if (!measured.empty()) {
    auto above = std::ranges::find_if(measured, [&](const AllReduceTime& t) { return t.bytes >= bytes; });
    if (above == measured.begin()) return above->seconds;  // small ones are pure latency
    if (above == measured.end()) --above;
    if (above == measured.begin()) return above->seconds * bytes / above->bytes;
    const AllReduceTime &a = *std::prev(above), &b = *above;
    return a.seconds + std::max(0.0, b.seconds - a.seconds) * (bytes - a.bytes) / (b.bytes - a.bytes);
  }
  const std::size_t n = network.host_of.size();
  double rate = network.inside_rate, latency = network.inside_latency;
  std::set<std::pair<int, int>> crossed;
  for (std::size_t i = 0; i < n; ++i) {
    const int from = network.host_of[i], to = network.host_of[(i + 1) % n];
    if (from == to) continue;
    crossed.emplace(from, to);
    rate = std::min({rate, network.hosts[from].send, network.hosts[to].receive});
    latency = std::max(latency, network.latency);
  }
  for (const HostLink& link : network.links) {
    if (!crossed.contains({link.from, link.to})) continue;
    rate = std::min(rate, link.rate);
    latency = std::max(latency, link.latency);
  }
  return 2 * static_cast<double>(n - 1) * (latency + bytes / static_cast<double>(n) / rate);
}

Forecast simulate_all_reduce(const Network& network, const Work& work, const Horizon& run,
                             const std::vector<AllReduceTime>& measured) {
  check_fits(network, work, run);
  const std::vector<Recorded> all = recorded(work);
  const auto n = static_cast<int>(network.host_of.size());
  const std::size_t blocks = work.mean_bytes.size();
  if (static_cast<double>(run.iterations) * n * static_cast<double>(blocks) >
      static_cast<double>(run.most_events))
    refuse_more_than(run.most_events);
  std::vector<double> c, begin(static_cast<std::size_t>(n)), ready(blocks);
  for (double bytes : work.mean_bytes) c.push_back(n == 1 ? 0 : all_reduce_seconds(network, bytes, measured));
  Ends ends(n, run);
  double own = 0, waited = 0, late = 0;
  std::vector<std::size_t> samples(static_cast<std::size_t>(n));
  for (int t = 0; t < run.iterations; ++t) {
    std::fill(ready.begin(), ready.end(), 0);
    for (int i = 0; i < n; ++i) {
      const Recorded& mine = all[static_cast<std::size_t>(i) % all.size()];
      const std::size_t k = samples[i] = drawn_iteration(run, i, t, mine.count);
      for (std::size_t b = 0; b < blocks; ++b)
        ready[b] = std::max(ready[b], begin[i] + mine.before[k] + mine.backward[k * blocks + b]);
    }
    double E = 0;
    for (std::size_t b = 0; b < blocks; ++b) E = std::max(E, ready[b]) + c[b];
    for (int i = 0; i < n; ++i) {
      const Recorded& mine = all[static_cast<std::size_t>(i) % all.size()];
      double update = 0;
      for (std::size_t b = 0; b < blocks; ++b) update += mine.update[samples[i] * blocks + b];
      if (t >= run.warm_up) {
        own += mine.until_step(samples[i]) + update;
        waited += E - begin[i] - mine.until_step(samples[i]);
        late += ready.back() - begin[i] - mine.until_step(samples[i]);
      }
      begin[i] = E + update;
      ends.add(i, t, begin[i]);
    }
  }
  Forecast outcome = ends.forecast();
  const double counted = static_cast<double>(n) * (run.iterations - run.warm_up);
  outcome.own = own / counted;
  outcome.waited = waited / counted;
  outcome.late = late / counted;
  outcome.busiest.seconds = std::accumulate(c.begin(), c.end(), 0.0);
  return outcome;
}

}  // namespace starling
