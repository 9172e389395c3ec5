// "From Promise to Practice" (Wang et al., ICLR 2025) publishes step times for its Transformer.
// This program compares them with the runtime model. It prints a table (docs/results/planner.md),
// and needs nothing that is not in this file.
//
//   bench-paper_steps
//
// The paper has, for three clusters and three numbers of workers, the milliseconds of a step with
// all-reduce, with SGP (push-sum on the directed one-peer exponential graph), with
// one-peer-exponential and with the alternating-exp-ring (AER). The model needs more data, from
// these sources:
//
//   M         260 MB: 65 million parameters in fp32, the Transformer "base"; in blocks of 25 MB.
//             Assumed
//   cards     nominal: 100 Gb/s and 25 Gb/s each way, one for each node; latency 5 us. The latency
//             is assumed
//   inside    between two GPUs of a node: 12 GB/s over PCIe (T4, A40), 200 GB/s over NVLink (A100).
//             Assumed
//   compute   a + b / n, as the global batch is the same for every n; from the published AER of the
//             two smaller worlds, with the assumption that AER never waits. A third of it is
//             forward, the rest backward; no variation
//
// The AER of the two smaller worlds is therefore given, and all else is predicted. SGP,
// one-peer-exponential and all-reduce are simulated. SGP overlaps with all of the next iteration,
// as ours does; the overlap of its own program is not published. The rounds of AER between nodes
// are all-reduces in a ring among the workers of two nodes, which cross each card once, every
// second round: C = M (g - 1) / g over the card's rate, with g the workers of two nodes. Our own
// exchange sends a group's shards directly, which is L / 2 times as much with L workers per node.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "starling/plan/all_reduce.h"
#include "starling/plan/simulate.h"
#include "starling/topology/schedules.h"

namespace {

constexpr double kModel = 260e6, kBlock = 25e6, kLatency = 5e-6;
constexpr double kExplained = 0.15;

struct Published {
  int workers;
  double all_reduce, sgp, one_peer, aer;  // ms
};

struct Cluster {
  const char* name;
  double rate;    // of a card
  double inside;  // bytes a second, both
  int workers_per_node;
  std::array<Published, 3> worlds;
};

const std::vector<Cluster> kClusters = {
    {"8 x T4, 100 Gb/s",
     12.5e9,
     12e9,
     8,
     {{{16, 372.5, 425.5, 314.8, 312.3},
       {32, 225.5, 292.4, 178.8, 178.8},
       {64, 167.3, 235.5, 123.1, 122.2}}}},
    {"4 x A100, 100 Gb/s",
     12.5e9,
     200e9,
     4,
     {{{8, 73.0, 69.4, 63.4, 61.7}, {16, 54.8, 53.0, 46.8, 45.8}, {32, 51.5, 50.7, 44.7, 43.7}}}},
    {"4 x A40, 25 Gb/s",
     3.125e9,
     12e9,
     4,
     {{{8, 166.1, 150.5, 122.8, 122.0}, {16, 195.5, 99.9, 97.4, 78.9}, {32, 188.5, 112.4, 110.8, 67.9}}}},
};

// Milliseconds of a + b / n through two points.
double compute_of(const Cluster& cluster, int n) {
  const Published &first = cluster.worlds[0], &second = cluster.worlds[1];
  const double b = (first.aer - second.aer) / (1.0 / first.workers - 1.0 / second.workers);
  return first.aer - b / first.workers + b / n;
}

struct Predicted {
  double compute, all_reduce, sgp, one_peer, aer;  // ms
};

Predicted predicted(const Cluster& cluster, int n) {
  const int L = cluster.workers_per_node;
  starling::Network network;
  network.latency = network.inside_latency = kLatency;
  network.inside_rate = cluster.inside;
  for (int i = 0; i < n; ++i) network.host_of.push_back(i / L);
  network.hosts.resize(static_cast<std::size_t>(n / L));
  for (starling::Host& host : network.hosts) host.send = host.receive = cluster.rate;

  const auto blocks = static_cast<std::size_t>(std::ceil(kModel / kBlock));
  const double compute = compute_of(cluster, n) / 1e3, F = compute / 3,
               b = compute * 2 / 3 / static_cast<double>(blocks);
  starling::Work work;
  work.block_bytes = work.mean_bytes = std::vector<double>(blocks, kModel / static_cast<double>(blocks));
  work.compute = {{.data_wait = {0},
                   .forward = {F},
                   .backward = std::vector(blocks, std::vector{b}),
                   .update = std::vector(blocks, std::vector{0.0})}};

  const auto gossip = [&](const char* name) {
    return simulate(network, work, starling::make_schedule(name, n, L), starling::Mixing::ahead,
                    {.iterations = 200})
        .step;
  };
  const double g = 2 * L, C = kModel * (g - 1) / g / cluster.rate;
  return {.compute = compute * 1e3,
          .all_reduce = simulate_all_reduce(network, work).step * 1e3,
          .sgp = gossip("one-peer-exponential-directed") * 1e3,
          .one_peer = gossip("one-peer-exponential") * 1e3,
          .aer = std::max(compute, C) * 1e3};
}

}  // namespace

int main() {
  std::puts("| nodes | workers | compute | | published | model | error |\n|-|-|-|-|-|-|-|");
  for (const Cluster& cluster : kClusters) {
    for (std::size_t k = 0; k < cluster.worlds.size(); ++k) {
      const Published& published = cluster.worlds[k];
      const Predicted model = predicted(cluster, published.workers);
      const auto row = [&](const std::string& nodes, const char* system, double published_ms, double step,
                           bool given = false) {
        const double error = step / published_ms - 1;
        const std::string judged = given ? "given"
                                   : std::abs(error) <= kExplained
                                       ? fmt::format("{:+.0f} %", 100 * error)
                                       : fmt::format("**{:+.0f} %**", 100 * error);
        std::puts(fmt::format("| {} | {} | {:.1f} | {:.1f} | {} |", nodes, system, published_ms, step, judged)
                      .c_str());
      };
      row(fmt::format("{} | {} | {:.1f}", cluster.name, published.workers, model.compute), "all-reduce",
          published.all_reduce, model.all_reduce);
      row(" | |", "SGP", published.sgp, model.sgp);
      row(" | |", "one-peer-exponential", published.one_peer, model.one_peer);
      row(" | |", "AER", published.aer, model.aer, k < 2);
    }
  }
  return 0;
}
