// The program behind bench/planner.py.
//
//   bench-planner steps JOB
//       One worker that trains a model whose compute is a sleep, with one system after the other.
//       JOB is a JSON file:
//         parameters   in total, in `layers` layers
//         compute      per worker: seconds of forward and backward of every step, repeated
//         seconds      duration of the measurement of a system, with at least `steps` steps, after
//                      some steps of warm-up
//         systems      each has a name, a scheme, a topology and a wire
//         profile      file for the compute of all workers, as recorded while the first system ran
//       The environment names the workers. Rank 0 prints for each system:
//         step_ms      mean over all its steps and workers
//         idle         the part of this machine's processors that was idle meanwhile
//         overslept    the excess of all workers' sleeps over their requested time, as a ratio
//   bench-planner simulate WORKERS BLOCKS ITERATIONS
//       Seconds of one processor that the runtime model takes for these numbers, with base-2 and
//       compute that varies.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "bench/measure.h"
#include "bench/sleeping.h"
#include "starling/core/error.h"
#include "starling/core/file.h"
#include "starling/core/random.h"
#include "starling/optim/optimizer.h"
#include "starling/plan/simulate.h"
#include "starling/topology/schedules.h"
#include "starling/train/compute.h"

namespace {

using Json = nlohmann::ordered_json;

// Steps before the number of counted steps is known, and half as many after; whole periods of the
// schedule.
constexpr int kWarmUp = 6;

// Jiffies of all processors since the machine started.
struct Processors {
  double idle = 0, all = 0;

  static Processors now() {
    std::ifstream file("/proc/stat");
    std::string name;
    file >> name;
    Processors sum;
    double value = 0;
    for (int column = 0; column < 8 && file >> value;
         ++column) {  // user nice system idle iowait irq softirq steal
      sum.all += value;
      if (column == 3 || column == 4) sum.idle += value;
    }
    if (name != "cpu" || !(sum.all > 0))
      throw starling::Error("/proc/stat: its first line has not the times of all processors");
    return sum;
  }
  double idle_since(const Processors& before) const { return (idle - before.idle) / (all - before.all); }
};

// Everyone's text, for everyone. No worker returns before all have come.
std::vector<std::string> gathered(const starling::World& world, const std::string& key,
                                  const std::string& mine) {
  world.store->set(fmt::format("{}/{}", key, world.rank), mine);
  std::vector<std::string> all;
  for (int rank = 0; rank < world.size; ++rank)
    all.push_back(world.store->get(fmt::format("{}/{}", key, rank), world.timeouts.meet));
  return all;
}

// The compute of all workers, in the order in which the backward pass of this worker ends.
starling::Profile compute_of_all(const starling::World& world, const starling::Optimizer& optimizer) {
  const auto mine = starling::recorded_compute(world.timeline->spans(), optimizer.block_sizes());
  starling::Profile all = mine.profile;
  all.compute.clear();
  for (const std::string& text : gathered(world, "compute", starling::print_profile(mine.profile)))
    all.compute.push_back(starling::parse_profile(text, "a worker's compute").compute.front());
  return starling::in_order(all, mine.order);
}

Json measured(const Json& job, const Json& system, starling::World world, const std::string& profile) {
  const auto name = system.at("name").get<std::string>();
  const auto compute = job.at("compute").at(static_cast<std::size_t>(world.rank)).get<std::vector<double>>();
  const auto weights =
      bench::sleeping_weights(job.at("parameters").get<std::int64_t>(), job.at("layers").get<std::int64_t>());
  starling::Options options{.topology = system.at("topology"),
                            .scheme = system.at("scheme").get<std::string>()};
  options.wire = starling::wire_named(system.at("wire").get<std::string>());
  const auto rounds =
      static_cast<int>(starling::make_schedule(options.topology, world.size, world.local_size).rounds.size());
  const int period = options.scheme.name == "cta" ? rounds : 1;
  const auto whole = [&](double steps) { return static_cast<int>(std::ceil(steps / period)) * period; };
  world.timeline =
      std::make_shared<starling::Timeline>(world.rank, world.size, starling::TimelineOptions{.from = 1});
  starling::Optimizer optimizer(weights, starling::Adam{.lr = 1e-4}, options, world);

  std::size_t done = 0;
  const auto steps = [&](int count) {
    const double begin = bench::now();
    for (int k = 0; k < count; ++k, ++done) {
      world.timeline->step(static_cast<std::int64_t>(done) + 1);
      optimizer.zero_grad();
      bench::sleeping_gradient(weights, compute[done % compute.size()], world.timeline.get());
      optimizer.step();
    }
    return bench::now() - begin;
  };
  const int warm_up = whole(kWarmUp);
  gathered(world, name + "/begin", "");
  const double each = steps(warm_up) / warm_up;
  const double wanted = std::max(job.at("steps").get<double>(), job.at("seconds").get<double>() / each);
  const int count = std::stoi(gathered(world, name + "/steps", fmt::format("{}", whole(wanted)))[0]);
  steps(whole(kWarmUp / 2));
  const bench::Slept slept = bench::slept;
  const Processors processors = Processors::now();
  const double seconds = steps(count);
  const double idle = Processors::now().idle_since(processors);
  if (const auto statistics = optimizer.statistics(); statistics.aborted > 0) {
    throw starling::Error(fmt::format("{}: {} of {} exchanges were aborted", name, statistics.aborted,
                                      statistics.aborted + statistics.committed));
  }
  Json mine{{"seconds", seconds},
            {"asked", bench::slept.asked - slept.asked},
            {"took", bench::slept.took - slept.took}};
  double total = 0, asked = 0, took = 0;
  for (const std::string& text : gathered(world, name + "/end", mine.dump())) {
    const auto one = Json::parse(text);
    total += one.at("seconds").get<double>();
    asked += one.at("asked").get<double>();
    took += one.at("took").get<double>();
  }
  if (!profile.empty()) {
    const starling::Profile all = compute_of_all(world, optimizer);
    if (world.rank == 0) starling::write_text(profile, starling::print_profile(all));
  }
  return {{"step_ms", 1e3 * total / world.size / count},
          {"steps", count},
          {"idle", idle},
          {"overslept", took / asked - 1}};
}

int steps(const std::string& path) {
  std::ifstream file(path);
  const auto job = Json::parse(file);
  at::set_num_threads(1);
  const auto world = starling::World::from_environment();
  Json result = Json::object();
  std::string profile = job.at("profile");
  for (const auto& system : job.at("systems")) {
    result[system.at("name").get<std::string>()] = measured(job, system, world, profile);
    profile.clear();
  }
  // Rank 0 hosts the store, and leaves last.
  world.store->set(fmt::format("done/{}", world.rank), "");
  for (int rank = 0; world.rank == 0 && rank < world.size; ++rank)
    world.store->get(fmt::format("done/{}", rank), world.timeouts.meet);
  if (world.rank == 0) std::puts(result.dump().c_str());
  return 0;
}

int simulate(int workers, int blocks, int iterations) {
  starling::Network network;
  network.latency = 5e-5;
  for (int i = 0; i < workers; ++i) {
    network.host_of.push_back(i);
    network.hosts.push_back({.name = {}, .workers = {}, .send = 1e9, .receive = 1e9});
  }
  starling::Work work;
  for (int b = 0; b < blocks; ++b) work.block_bytes.push_back(2.5e6);
  work.mean_bytes = work.block_bytes;
  constexpr std::size_t kRecorded = 100;
  for (std::uint64_t i = 0; i < 8; ++i) {
    starling::Compute& compute = work.compute.emplace_back();
    compute.data_wait.assign(kRecorded, 0);
    compute.backward.assign(static_cast<std::size_t>(blocks), std::vector<double>(kRecorded, 0.018 / blocks));
    compute.update.assign(static_cast<std::size_t>(blocks), std::vector<double>(kRecorded, 0.002 / blocks));
    for (std::uint64_t k = 0; k < kRecorded; ++k)
      compute.forward.push_back(0.010 + 1e-5 * static_cast<double>(starling::random_bits({i, k}) % 300));
  }
  const auto schedule = starling::make_schedule("base-2", workers);
  const std::clock_t begin = std::clock();
  const auto outcome = starling::simulate(network, work, schedule, starling::Mixing::ahead,
                                          {.iterations = iterations, .warm_up = iterations / 5});
  const Json result{{"seconds", static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC},
                    {"step_ms", 1e3 * outcome.step}};
  std::puts(result.dump().c_str());
  return 0;
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() == 2 && arguments[0] == "steps") return steps(arguments[1]);
  if (arguments.size() == 4 && arguments[0] == "simulate")
    return simulate(std::stoi(arguments[1]), std::stoi(arguments[2]), std::stoi(arguments[3]));
  throw std::invalid_argument("usage: bench-planner steps JOB | simulate WORKERS BLOCKS ITERATIONS");
}

}  // namespace

int main(int argc, char** argv) {
  return bench::reported("bench-planner", [&] { return run({argv + 1, argv + argc}); });
}
