// The cost of Starling in cases without a benefit. One process or one worker of bench/overhead.py;
// prints JSON.
//
//   bench-overhead step [REPETITIONS [WIDTH]]
//       a training step without neighbours, and optimizer.step() alone in it, beside the same with
//       torch's fused AdamW; 30 layers of WIDTH^2 (256) parameters
//   bench-overhead memory RULE WIRE [MEGA]
//       two workers that are threads, with MEGA million parameters each: bytes per parameter and
//       worker besides the parameters and their gradients
//   bench-overhead local [REPETITIONS]
//       a worker of several: a step of a tiny model, beside Gloo's all-reduce of its gradients and
//       torch's fused AdamW, by turns; rank 0 prints
//   bench-overhead protections [REPETITIONS [WIDTH]]
//       a worker of several, over TCP: a training step with each protection against faults, and
//       with all of them, beside the same without any, by turns; rank 0 prints
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <latch>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <unistd.h>

#include "bench/gloo.h"
#include "bench/measure.h"
#include "starling/optim/optimizer.h"
#include "starling/transport/tcp/tcp.h"

namespace {

using at::Tensor;
using bench::median;
using bench::now;
using Json = nlohmann::ordered_json;

const starling::AdamW kRule{.lr = 1e-3, .weight_decay = 0.01};

// Layers of a weight and a bias each.
std::vector<Tensor> layers(std::int64_t count, std::int64_t width) {
  at::manual_seed(1);
  std::vector<Tensor> parameters;
  for (std::int64_t i = 0; i < count; ++i) {
    const double scale = std::sqrt(2.0 / static_cast<double>(width));
    parameters.push_back(at::randn({width, width}).mul_(scale).set_requires_grad(true));
    parameters.push_back(at::zeros({width}).set_requires_grad(true));
  }
  return parameters;
}

void train(const std::vector<Tensor>& parameters, const Tensor& batch) {
  Tensor x = batch;
  for (std::size_t i = 0; i < parameters.size(); i += 2)
    x = at::relu(at::addmm(parameters[i + 1], x, parameters[i].t()));
  x.pow(2).mean().backward();
}

class TorchAdamW {
 public:
  explicit TorchAdamW(std::vector<Tensor> parameters) : x_(std::move(parameters)) {
    for (const Tensor& p : x_) {
      m_.push_back(at::zeros_like(p)), v_.push_back(at::zeros_like(p)), t_.push_back(at::zeros({}));
    }
  }
  void zero_grad() {
    for (const Tensor& p : x_) p.mutable_grad().reset();
  }
  void step() {
    const c10::AutoGradMode no_gradient(false);
    std::vector<Tensor> g;
    for (const Tensor& p : x_) g.push_back(p.grad());
    at::_foreach_add_(t_, 1);
    at::_fused_adamw_(x_, g, m_, v_, {}, t_, kRule.lr, kRule.betas[0], kRule.betas[1], kRule.weight_decay,
                      kRule.eps, false, false);
  }

 private:
  std::vector<Tensor> x_, m_, v_, t_;
};

// 60 tensors; with the width of 256, 2 million parameters.
Json step(std::int64_t repetitions, std::int64_t width) {
  const Tensor batch = at::randn({32, width});
  const std::vector<Tensor> ours = layers(30, width), theirs = layers(30, width);
  starling::Optimizer starling(ours, kRule, {}, starling::World::alone());
  TorchAdamW torch(theirs);
  std::map<std::string, std::vector<double>> seconds, alone;
  const auto lap = [&](const std::string& name, const std::vector<Tensor>& parameters, auto& optimizer) {
    const double begin = now();
    optimizer.zero_grad();
    train(parameters, batch);
    const double trained = now();
    optimizer.step();
    const double end = now();
    seconds[name].push_back(end - begin), alone[name].push_back(end - trained);
  };
  for (std::int64_t r = 0; r <= repetitions; ++r) {
    lap("starling", ours, starling);
    lap("torch_fused", theirs, torch);
    if (r != 0) continue;  // a warm-up, and the proof that both do the same
    for (std::size_t i = 0; i < ours.size(); ++i) {
      if (!((ours[i] - theirs[i]).abs().max().item<double>() < 1e-5))
        throw std::runtime_error("Starling's step and torch's end at different numbers");
    }
    seconds.clear(), alone.clear();
  }
  const double mine = median(seconds["starling"]), other = median(seconds["torch_fused"]);
  return {{"vs_torch_fused_step", other / mine},
          {"starling_ms", 1e3 * mine},
          {"torch_fused_ms", 1e3 * other},
          {"starling_alone_ms", 1e3 * median(alone["starling"])},
          {"torch_fused_alone_ms", 1e3 * median(alone["torch_fused"])}};
}

double resident_bytes() {
  std::ifstream file("/proc/self/statm");
  double size = 0, resident = 0;
  file >> size >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

Json memory(const std::string& rule, const std::string& wire, std::int64_t mega) {
  const std::map<std::string, starling::Rule> rules{{"sgd", starling::SGD{}},
                                                    {"sgd-momentum", starling::SGD{.momentum = 0.9}},
                                                    {"adamw", starling::AdamW{}},
                                                    {"accum-adamw", starling::AccumAdamW{}}};
  const auto found = rules.find(rule);
  if (found == rules.end())
    throw std::invalid_argument("RULE is one of sgd, sgd-momentum, adamw, accum-adamw, and not '" + rule +
                                "'");
  const starling::Options options{.wire = starling::wire_named(wire)};
  constexpr int kWorkers = 2;
  const std::int64_t count = mega * 1'000'000;
  std::vector<Tensor> parameters;
  for (int i = 0; i < kWorkers; ++i) {
    parameters.push_back(at::full({count}, 1e-3 * i).set_requires_grad(true));
    parameters.back().mutable_grad() = at::full({count}, 1e-3);
  }
  const double before = resident_bytes();
  double after = 0;
  const auto worlds = starling::World::threads(kWorkers);
  std::latch all_have_stepped(kWorkers), measured(1);
  const auto work = [&](std::size_t i) {
    starling::Optimizer optimizer(std::vector<Tensor>{parameters[i]}, found->second, options, worlds[i]);
    for (int t = 0; t < 5; ++t) optimizer.step();
    all_have_stepped.count_down();
    measured.wait();
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kWorkers; ++i) threads.emplace_back(work, i);
  all_have_stepped.wait();
  after = resident_bytes();
  measured.count_down();
  for (std::thread& thread : threads) thread.join();
  return {{"rule", rule},
          {"wire", wire},
          {"bytes_per_parameter", (after - before) / static_cast<double>(kWorkers * count)}};
}

// 60 tensors, 12,000 parameters.
Json local(std::int64_t repetitions) {
  constexpr int kSteps = 50;
  starling::World world = starling::World::from_environment();
  world.log = starling::log_to_stderr(world.rank);
  bench::Gloo gloo(world);
  const std::vector<Tensor> ours = layers(30, 20), theirs = layers(30, 20);
  starling::Optimizer starling(ours, kRule, {.topology = "one-peer-exponential"}, world);
  TorchAdamW torch(theirs);
  std::vector<Tensor> gradients;
  for (const Tensor& p : ours) gradients.push_back(at::full_like(p, 1e-3));
  const auto set = [&](const std::vector<Tensor>& parameters) {
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].mutable_grad() = gradients[i];
  };
  set(ours), set(theirs);
  const auto all_reduce = [&] {
    std::vector<Tensor> flat;
    for (const Tensor& g : gradients) flat.push_back(g.flatten());
    Tensor all = at::cat(flat);
    gloo.sum(all);
    all.div_(world.size);
    std::int64_t begin = 0;
    for (const Tensor& p : theirs) {
      p.mutable_grad() = all.narrow(0, begin, p.numel()).view_as(p);
      begin += p.numel();
    }
    torch.step();
  };
  std::map<std::string, std::vector<double>> seconds;
  const auto lap = [&](const std::string& name, const auto& step) {
    gloo.barrier();
    const double begin = now();
    for (int t = 0; t < kSteps; ++t) step();
    const double mine = now() - begin;
    gloo.barrier();  // the others may still need this worker
    seconds[name].push_back(gloo.of_all({mine, 0}).seconds / kSteps);
  };
  for (std::int64_t r = 0; r <= repetitions; ++r) {
    lap("starling", [&] { starling.step(); });
    lap("gloo", all_reduce);
    if (r == 0) seconds.clear();
  }
  const double mine = median(seconds["starling"]), other = median(seconds["gloo"]);
  return {{"workers", world.size},
          {"starling_ms", 1e3 * mine},
          {"gloo_ms", 1e3 * other},
          {"vs_gloo", other / mine}};
}

// Protections against faults. A frame always has a checksum or a tag.
struct Protection {
  const char* name;
  bool heartbeats = false;  // the default `silent` timeout; else an hour
  bool tags = false;        // on all frames, as between hosts; else checksums, as within a host
  bool guard = false;       // Options::jump_guard
  bool rejoin = false;      // World::rejoin
};
constexpr Protection kProtections[] = {
    {"none"},
    {.name = "heartbeats", .heartbeats = true},
    {.name = "tags", .tags = true},
    {.name = "jump_guard", .guard = true},
    {.name = "rejoin", .rejoin = true},
    {.name = "all", .heartbeats = true, .tags = true, .guard = true, .rejoin = true}};

// One worker that trains under it.
struct Protected {
  Protected(const Protection& by, starling::World world, std::int64_t width)
      : parameters(layers(30, width)), batch(at::randn({32, width}) + world.rank) {
    world.rejoin = by.rejoin;
    if (!by.heartbeats) world.timeouts.silent = std::chrono::hours(1);
    world.make_transport = [tags = by.tags](const starling::World& of, const std::string& channel) {
      return starling::make_tcp_transport_with({.seal_within_host = tags}, of, channel);
    };
    starling::Options options{.topology = "one-peer-exponential"};
    if (by.guard) options.jump_guard = 1e6;  // it measures, and refuses nothing
    optimizer = std::make_unique<starling::Optimizer>(parameters, kRule, options, world);
  }
  void step() {
    optimizer->zero_grad();
    train(parameters, batch);
    optimizer->step();
  }
  std::vector<Tensor> parameters;
  Tensor batch;
  std::unique_ptr<starling::Optimizer> optimizer;
};

Json protections(std::int64_t repetitions, std::int64_t width) {
  constexpr int kSteps = 20;
  starling::World world = starling::World::from_environment();
  world.log = starling::log_to_stderr(world.rank);
  bench::Gloo gloo(world);
  std::vector<std::unique_ptr<Protected>> forms;
  for (const Protection& by : kProtections) forms.push_back(std::make_unique<Protected>(by, world, width));
  std::vector<std::vector<double>> seconds(forms.size());
  for (std::int64_t r = 0; r <= repetitions; ++r) {  // the first one warms up
    for (std::size_t k = 0; k < forms.size(); ++k) {
      gloo.barrier();
      const double begin = now();
      for (int t = 0; t < kSteps; ++t) forms[k]->step();
      const double mine = now() - begin;
      gloo.barrier();  // the others may still need this worker
      const double slowest = gloo.of_all({mine, 0}).seconds;
      if (r > 0) seconds[k].push_back(slowest / kSteps);
    }
  }
  const double bare = median(seconds[0]);
  Json result = {{"workers", world.size}, {"none_ms", 1e3 * bare}};
  for (std::size_t k = 1; k < forms.size(); ++k)
    result[kProtections[k].name] = {{"ms", 1e3 * median(seconds[k])}, {"ratio", median(seconds[k]) / bare}};
  return result;
}

// The optional number at this place, at least 1.
std::int64_t number(const std::vector<std::string>& words, std::size_t at, std::int64_t otherwise) {
  if (at >= words.size()) return otherwise;
  const std::int64_t value = std::atoll(words[at].c_str());
  if (value < 1) throw std::invalid_argument("'" + words[at] + "' is no number from 1 on");
  return value;
}

int run(const std::vector<std::string>& words) {
  at::set_num_threads(1);
  const std::string what = words.empty() ? "" : words[0];
  Json result;
  if (what == "step" && words.size() <= 3) {
    result = step(number(words, 1, 300), number(words, 2, 256));
  } else if (what == "memory" && words.size() >= 3 && words.size() <= 4) {
    result = memory(words[1], words[2], number(words, 3, 16));
  } else if (what == "local" && words.size() <= 2) {
    result = local(number(words, 1, 9));
    if (std::atoi(std::getenv("RANK")) != 0) return 0;
  } else if (what == "protections" && words.size() <= 3) {
    result = protections(number(words, 1, 30), number(words, 2, 256));
    if (std::atoi(std::getenv("RANK")) != 0) return 0;
  } else {
    throw std::invalid_argument(
        "usage: bench-overhead step [REPETITIONS [WIDTH]] | memory RULE WIRE [MEGA] | local [REPETITIONS] | "
        "protections [REPETITIONS [WIDTH]]");
  }
  std::puts(result.dump().c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return bench::reported("bench-overhead", [&] { return run({argv + 1, argv + argc}); });
}
