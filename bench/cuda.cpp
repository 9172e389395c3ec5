// The speed of the update and of a step on a GPU. Prints JSON. Without a GPU it says so, and ends
// with code 3.
//
//   bench-cuda [--parameters N] [--repetitions N] [--compute MS]
//
//   update   AdamW on N parameters (256 Mi, in 8 blocks) in fp32 and in bf16, in one tensor,
//            without neighbours. copy_share: the bytes per second that the formula must move (x, g,
//            m, v read; x, m, v written: 28 per parameter in fp32, 30 in bf16), as part of those of
//            torch's copy. vs_torch_fused: time of torch's fused AdamW, divided by ours
//   step     124 Mi parameters, AdamW: a substitute for forward and backward that keeps the GPU
//            busy (matrix products, about MS milliseconds, 100, for one worker alone on the GPU),
//            then step(). For one worker, and for two processes that share the card and mix,
//            by wire:
//              step_ms         a whole step
//              compute_ms      the same workers at once, without step()
//              killed          with fp32: one worker is killed, and the other goes on: its first
//                              step after that, and the mean of the others
// Times of `update` are medians, with a wait for the GPU around each repetition. Times of steps are
// means, as rank 0 sees them.
#include "starling/optim/cuda/cuda.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/optim/optimizer.h>
#include <unistd.h>

#include "bench/measure.h"
#include "starling/optim/blocks.h"
#include "starling/optim/optimizer.h"
#include "starling/optim/pass.h"
#include "starling/train/launch.h"
#include "starling/world/world.h"

namespace {

using at::Tensor;
using bench::median;
using bench::now;
using Json = nlohmann::ordered_json;

constexpr const char* kWorker = "worker";  // the program's first argument in its own children
const at::Device kGpu(at::kCUDA, 0);
const starling::AdamW kRule{.lr = 1e-3, .weight_decay = 0.01};

void wait_for_gpu() { c10::impl::VirtualGuardImpl(at::kCUDA).synchronizeDevice(0); }

Tensor random(at::IntArrayRef sizes, at::ScalarType type) {
  return at::randn(sizes, at::TensorOptions(type).device(kGpu));
}

template <class F>
double median_seconds(std::int64_t repetitions, const F& f) {
  std::vector<double> all;
  for (std::int64_t r = 0; r <= repetitions; ++r) {
    wait_for_gpu();
    const double begin = now();
    f();
    wait_for_gpu();
    if (r > 0) all.push_back(now() - begin);  // the first one warms up
  }
  return median(all);
}

Json update(std::int64_t n, std::int64_t repetitions, at::ScalarType type) {
  const Tensor x = random({n}, type).set_requires_grad(true);
  x.mutable_grad() = random({n}, type);
  std::vector<starling::Block> blocks;
  starling::append_blocks(blocks, {torch::optim::OptimizerParamGroup(std::vector<Tensor>{x})}, 0,
                          std::int64_t{1} << 30);  // limited by the GPU, not by the host
  for (starling::Block& block : blocks) block.keep(2);
  const double ours = median_seconds(repetitions, [&] {
    for (starling::Block& block : blocks) starling::update(block, kRule, {}, {});
    starling::settle(blocks);
  });
  const Tensor from = random({n}, at::kFloat), to = at::zeros_like(from);
  const double copy = median_seconds(repetitions, [&] { to.copy_(from); });
  const std::vector<Tensor> p{random({n}, type)}, g{x.grad()}, m{at::zeros_like(p[0])},
      v{at::zeros_like(p[0])}, t{at::zeros({}, at::TensorOptions(at::kFloat).device(kGpu))};
  const double fused = median_seconds(repetitions, [&] {
    at::_foreach_add_(t, 1);
    at::_fused_adamw_(p, g, m, v, {}, t, kRule.lr, kRule.betas[0], kRule.betas[1], kRule.weight_decay,
                      kRule.eps, false, false);
  });
  const double values = static_cast<double>(n), moved = type == at::kFloat ? 28 : 30;
  return {{"copy_share", moved * values / ours / (8 * values / copy)},
          {"vs_torch_fused", fused / ours},
          {"starling_ms", 1e3 * ours},
          {"starling_gigabytes_per_second", 1e-9 * moved * values / ours},
          {"copy_gigabytes_per_second", 1e-9 * 8 * values / copy},
          {"torch_fused_ms", 1e3 * fused}};
}

// A number of matrix products, put into torch's stream.
class Compute {
 public:
  explicit Compute(std::int64_t products) : products(products) {}
  void run() const {
    for (std::int64_t i = 0; i < products; ++i) at::matmul(a_, b_);
  }
  std::int64_t products;

 private:
  Tensor a_ = random({4096, 4096}, at::kBFloat16), b_ = random({4096, 4096}, at::kBFloat16);
};

std::int64_t products_in(double milliseconds) {
  constexpr std::int64_t kSome = 20;
  const Compute some(kSome);
  const double seconds = median_seconds(3, [&] { some.run(); });
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(kSome * milliseconds * 1e-3 / seconds));
}

// The job of a worker, and rank 0's report. With `kill`, the worker with the last rank kills itself
// at the end.
struct StepJob {
  std::string wire, out{};
  std::int64_t products = 0, steps = 0;
  bool kill = false;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StepJob, out, wire, products, steps, kill)

void work(const StepJob& job) {
  const auto world = starling::World::from_environment();
  const Compute compute(job.products);
  std::vector<Tensor> x;
  for (int k = 0; k < 124; ++k) {
    x.push_back(random({1024, 1024}, at::kFloat).set_requires_grad(true));
    x.back().mutable_grad() = random({1024, 1024}, at::kFloat).mul_(1e-3);
  }
  starling::Optimizer optimizer(x, kRule, {.wire = starling::wire_named(job.wire)}, world);
  const auto mean_ms = [&](std::int64_t steps, const auto& step) {
    wait_for_gpu();
    const double begin = now();
    for (std::int64_t t = 0; t < steps; ++t) step();
    wait_for_gpu();
    return 1e3 * (now() - begin) / static_cast<double>(steps);
  };
  const auto step = [&] { compute.run(), optimizer.step(); };
  mean_ms(3, step);  // warms up
  optimizer.wait_for_all();
  Json said{{"compute_ms", mean_ms(job.steps, [&] { compute.run(); })}};
  optimizer.wait_for_all();
  said["step_ms"] = mean_ms(job.steps, step);
  if (job.kill) {
    optimizer.wait_for_all();
    if (world.rank == world.size - 1) std::raise(SIGKILL);
    said["killed"] = {{"first_step_ms", mean_ms(1, step)}, {"step_ms", mean_ms(job.steps, step)}};
  }
  if (world.rank == 0) std::ofstream(job.out) << said;
}

// Runs `workers` copies of this program at once.
Json worked(int workers, StepJob job) {
  job.out = std::filesystem::temp_directory_path() / ("bench-cuda-" + std::to_string(getpid()) + ".json");
  const int code = starling::launch_workers(
      workers, {kWorker, nlohmann::json(job).dump()},
      [](const std::string& said) { std::fprintf(stderr, "bench-cuda: %s\n", said.c_str()); });
  if (code != 0) throw std::runtime_error("the workers of a step ended with code " + std::to_string(code));
  Json said = Json::parse(std::ifstream(job.out));
  std::filesystem::remove(job.out);
  return said;
}

Json step(double milliseconds, std::int64_t steps) {
  StepJob job{.wire = "fp32", .products = products_in(milliseconds), .steps = steps};
  Json all{{"one_worker", worked(1, job)}};
  for (const std::string wire : {"fp32", "bf16", "int8"}) {
    job.wire = wire, job.kill = wire == "fp32";
    all["two_workers_" + wire] = worked(2, job);
  }
  return all;
}

int run(int argc, char** argv) {
  const c10::AutoGradMode no_gradient(false);
  if (argc == 3 && argv[1] == std::string(kWorker)) {
    starling::note_interruptions();
    if (const std::string why = starling::find_cuda(); !why.empty()) throw std::runtime_error(why);
    work(nlohmann::json::parse(argv[2]).get<StepJob>());
    return 0;
  }
  std::int64_t parameters = 256 << 20, repetitions = 15, compute = 100;
  const std::map<std::string, std::int64_t*> known{
      {"--parameters", &parameters}, {"--repetitions", &repetitions}, {"--compute", &compute}};
  for (int i = 1; i < argc; i += 2) {
    const auto option = known.find(argv[i]);
    const std::int64_t value = i + 1 < argc ? std::atoll(argv[i + 1]) : 0;
    if (option == known.end() || value < 1)
      throw std::invalid_argument(std::string("'") + argv[i] +
                                  "' is not allowed as it stands: --parameters N, " +
                                  "--repetitions N, --compute MILLISECONDS");
    *option->second = value;
  }
  if (const std::string why = starling::find_cuda(); !why.empty()) {
    std::fprintf(stderr, "bench-cuda: %s\n", why.c_str());
    return 3;
  }
  Json result{{"parameters", parameters}, {"repetitions", repetitions}};
  result["update_fp32"] = update(parameters, repetitions, at::kFloat);
  result["update_bf16"] = update(parameters, repetitions, at::kBFloat16);
  result["step"] = step(static_cast<double>(compute), repetitions);
  std::puts(result.dump(2).c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return bench::reported("bench-cuda", [&] { return run(argc, argv); });
}
