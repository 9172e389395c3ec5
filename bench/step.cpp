// One worker of bench/step.py: trains a model whose compute is a sleep, and prints the time of each
// step.
//
//   bench-step JOB SYSTEM [TOPOLOGY WIRE [HIERARCHY]]
//       SYSTEM: cta, all-reduce, or alone (no other worker, nothing is sent)
//
// JOB is a JSON file: parameters (in total), layers, warm_up (steps), and compute (seconds of
// forward and backward of every step, per worker). The environment names the workers. Rank 0 prints
// the milliseconds of each step after the warm-up, the bytes that it sent per step, and the share
// of the time that it waited.
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/Parallel.h>

#include "bench/measure.h"
#include "bench/sleeping.h"
#include "starling/core/clock.h"
#include "starling/optim/optimizer.h"

namespace {

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() != 2 && arguments.size() != 4 && arguments.size() != 5)
    throw std::invalid_argument("usage: bench-step JOB SYSTEM [TOPOLOGY WIRE [HIERARCHY]]");
  std::ifstream file(arguments[0]);
  const auto job = nlohmann::json::parse(file);
  const std::string& system = arguments[1];
  const auto layers = job.at("layers").get<std::int64_t>();
  const auto warm_up = job.at("warm_up").get<std::size_t>();

  at::set_num_threads(1);
  const auto all = starling::World::from_environment();
  const auto world = system == "alone" ? starling::World::alone() : all;
  const auto compute = job.at("compute").at(static_cast<std::size_t>(all.rank)).get<std::vector<double>>();
  starling::Options options{.scheme = system == "all-reduce" ? system : "cta"};
  if (arguments.size() >= 4) {
    options.topology = arguments[2];
    options.wire = starling::wire_named(arguments[3]);
  }
  if (arguments.size() == 5) options.hierarchy = arguments[4];
  const auto weights = bench::sleeping_weights(job.at("parameters").get<std::int64_t>(), layers);
  starling::Optimizer optimizer(weights, starling::Adam{.lr = 1e-4}, options, world);

  std::vector<double> milliseconds;
  starling::Statistics before;
  for (std::size_t step = 0; step < compute.size(); ++step) {
    if (step == warm_up) before = optimizer.statistics();
    const auto begin = starling::Clock::now();
    optimizer.zero_grad();
    bench::sleeping_gradient(weights, compute[step]);
    optimizer.step();
    if (step >= warm_up) milliseconds.push_back(1e3 * starling::seconds(starling::Clock::now() - begin));
  }
  const starling::Statistics after = optimizer.statistics();
  if (all.rank != 0) return 0;
  double total = 0;
  for (const double ms : milliseconds) total += ms;
  const nlohmann::json result{
      {"step_ms", milliseconds},
      {"bytes_per_step",
       static_cast<double>(after.bytes_sent - before.bytes_sent) / static_cast<double>(milliseconds.size())},
      {"waiting_share", 1e3 * (after.seconds_waiting - before.seconds_waiting) / total}};
  std::puts(result.dump().c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return bench::reported("bench-step", [&] { return run({argv + 1, argv + argc}); });
}
