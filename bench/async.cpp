// The program behind bench/async.py.
//
//   bench-async decay
//       Virtual workers on a ring of 64 that only gossip, at rate 1: how much faster they converge
//       with continuous momentum than without.
//   bench-async pace JOB SCHEME TOPOLOGY
//       One worker whose gradient is a sleep. JOB is a JSON file: parameters, and per worker
//       compute (seconds of a gradient) and steps. SCHEME may be "alone": no other worker. Prints
//       the end of each step by the system's monotonic clock.
//   bench-async learn RECIPE SECONDS [--section.key VALUE]..
//       One worker of a recipe that sleeps SECONDS in each gradient. Prints for each step its end
//       and its loss, the means of all workers; and the share of the time in which this worker
//       really computed. Rank 0 prints it.
// The environment names the workers of `pace` and `learn`.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/optimizer.h>

#include "bench/measure.h"
#include "bench/sleeping.h"
#include "starling/gossip/gossip.h"
#include "starling/optim/optimizer.h"
#include "starling/topology/schedules.h"
#include "starling/train/learner.h"
#include "starling/transport/local/local.h"

namespace {

using at::Tensor;
using bench::now, bench::sleep_for;
using Json = nlohmann::ordered_json;

// The workers' distance to their mean after `gradients` gradients that change nothing.
double distance_after(int n, bool momentum, int gradients) {
  constexpr std::size_t kSize = 256;
  constexpr auto kGradient = std::chrono::milliseconds(100);
  starling::GossipOptions options;
  options.rates = starling::pair_rates(starling::make_schedule("ring", n), 1);
  if (momentum) options.algorithm = starling::pair_averaging(starling::a2cid2_of(options.rates));
  const auto time = std::make_shared<starling::VirtualTime>(n);
  starling::LocalHub hub(n, {}, {.time = time});
  std::vector<std::vector<float>> x(static_cast<std::size_t>(n));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      const starling::VirtualTime::Life life(*time, rank);
      std::mt19937_64 random(static_cast<std::uint64_t>(rank));
      std::normal_distribution<float> normal;
      std::vector<float> mine(kSize);
      for (float& value : mine) value = normal(random);
      starling::Gossip gossip(hub.endpoint(rank), options, starling::on_host({mine}, *options.algorithm),
                              [](starling::Level, const std::string&) {});
      gossip.meet();
      for (int k = 0; k < gradients; ++k) {
        time->sleep(kGradient);
        gossip.stepped();
      }
      gossip.pause();
      gossip.access(0, [&](const starling::Held& held) {
        x[static_cast<std::size_t>(rank)].assign(held.x.begin(), held.x.end());
      });
      time->sleep(10 * kGradient);  // the others may not have paused yet
    });
  }
  for (auto& thread : threads) thread.join();
  double squares = 0;
  for (std::size_t k = 0; k < kSize; ++k) {
    double mean = 0;
    for (const auto& one : x) mean += one[k] / n;
    for (const auto& one : x) squares += (one[k] - mean) * (one[k] - mean);
  }
  return std::sqrt(squares / static_cast<double>(kSize) / n);
}

// exp(-decay) per gradient between these two.
double decay(int n, bool momentum, int from, int to) {
  return std::log(distance_after(n, momentum, from) / distance_after(n, momentum, to)) / (to - from);
}

Json decays() {
  const double plain = decay(64, false, 400, 800), with_momentum = decay(64, true, 100, 400);
  return {{"plain", plain}, {"with_momentum", with_momentum}, {"gain", with_momentum / plain}};
}

Json pace(const std::string& file, const std::string& scheme, const std::string& topology) {
  std::ifstream text(file);
  const auto job = nlohmann::json::parse(text);
  const auto all = starling::World::from_environment();
  const auto rank = static_cast<std::size_t>(all.rank);
  const auto compute = job.at("compute").at(rank).get<double>();
  const auto steps = job.at("steps").at(rank).get<int>();
  const Tensor x = at::zeros({job.at("parameters").get<std::int64_t>()}).set_requires_grad(true);
  starling::Options options{.topology = topology};
  if (scheme != "alone") options.scheme = scheme;
  starling::Optimizer optimizer({x}, starling::SGD{.lr = 1e-4}, options,
                                scheme == "alone" ? starling::World::alone() : all);
  std::vector<double> ends;
  for (int k = 0; k < steps; ++k) {
    sleep_for(compute);
    x.mutable_grad() = at::full({x.numel()}, 1e-3);
    optimizer.step();
    ends.push_back(now());
    if (k > 0) continue;
    std::puts("begun");
    std::fflush(stdout);
  }
  return {{"rank", all.rank}, {"ends", ends}};
}

Json learn(const std::string& file, double compute, const starling::Overrides& overrides) {
  const starling::Recipe recipe = starling::read_recipe(file, overrides);
  const auto world = starling::World::from_environment();
  starling::Learner learner(recipe, task_of(recipe).load(recipe), {world.rank, world.size});
  starling::Optimizer optimizer(learner.model(), make_rule(recipe), make_options(recipe), world);
  std::vector<float> ends, losses;
  double computed = 0;
  const double begin = now();
  for (std::int64_t k = 0; k < learner.steps(); ++k) {
    learner.begin_step(k, optimizer);
    const double before = now();
    losses.push_back(static_cast<float>(learner.gradient(k, optimizer)));
    computed += now() - before;
    sleep_for(compute);
    optimizer.step();
    ends.push_back(static_cast<float>(now() - begin));
  }
  const double computed_share = computed / ends.back();
  optimizer.average(ends);
  optimizer.average(losses);
  if (world.rank != 0) return {};
  return {{"ends", ends}, {"losses", losses}, {"computed_share", computed_share}};
}

int run(const std::vector<std::string>& arguments) {
  const std::string usage =
      "usage: bench-async decay | pace JOB SCHEME TOPOLOGY | learn RECIPE SECONDS [--section.key VALUE]..";
  const std::string what = arguments.empty() ? "" : arguments[0];
  at::set_num_threads(1);
  Json result;
  if (what == "decay" && arguments.size() == 1) {
    result = decays();
  } else if (what == "pace" && arguments.size() == 4) {
    result = pace(arguments[1], arguments[2], arguments[3]);
  } else if (what == "learn" && arguments.size() >= 3 && arguments.size() % 2 == 1) {
    starling::Overrides overrides;
    for (std::size_t i = 3; i < arguments.size(); i += 2)
      overrides.emplace_back(arguments[i].substr(2), arguments[i + 1]);
    result = learn(arguments[1], std::stod(arguments[2]), overrides);
  } else {
    throw std::invalid_argument(usage);
  }
  if (!result.is_null()) std::puts(result.dump().c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return bench::reported("bench-async", [&] { return run({argv + 1, argv + argc}); });
}
