// The speed of the update and of a step on a GPU. Prints JSON. Without a GPU it says so, and ends
// with code 3.
//
//   bench-cuda [--part all|update|step] [--device cuda|cpu] [--parameters N] [--repetitions N]
//              [--compute MS]
//
//   update   AdamW on N parameters (256 Mi, in 8 blocks) in fp32 and in bf16, in one tensor,
//            without neighbours. copy_share: the bytes per second that the formula must move (x, g,
//            m, v read; x, m, v written: 28 per parameter in fp32, 30 in bf16), as part of those of
//            torch's copy. vs_torch_fused: time of torch's fused AdamW, divided by ours
//   mix      the same in fp32 with a neighbour's block from the host's memory. torch_ms: its copy
//            to the GPU, lerp_ and fused AdamW. torch_lerp_fused_ms: the block is on the GPU
//            already
//   step     N parameters (at most 124 Mi), AdamW: a substitute for forward and backward that keeps
//            the GPU busy (matrix products, about MS milliseconds, 100, for one worker alone on the
//            GPU), then step(). For one worker, and for two processes that share the card and mix,
//            by wire:
//              step_ms         a whole step
//              compute_ms      the same workers at once, without step()
//              killed          with fp32: one worker is killed, and the other goes on: its first
//                              step after that, and the mean of the others
// Times of `update` are medians, with a wait for the GPU around each repetition. Times of steps are
// means, as rank 0 sees them. --device cpu runs the same code on the CPU, to test it.
#include "starling/optim/cuda/cuda.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
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
const starling::AdamW kRule{.lr = 1e-3, .weight_decay = 0.01};

at::Device device_named(const std::string& name) {
  return name == "cpu" ? at::Device(at::kCPU) : at::Device(at::kCUDA, 0);
}

void wait_for(at::Device device) {
  if (device.is_cuda()) c10::impl::VirtualGuardImpl(at::kCUDA).synchronizeDevice(0);
}

Tensor random(at::IntArrayRef sizes, at::ScalarType type, at::Device device) {
  return at::randn(sizes, at::TensorOptions(type).device(device));
}

template <class F>
double median_seconds(at::Device device, std::int64_t repetitions, const F& f) {
  std::vector<double> all;
  for (std::int64_t r = 0; r <= repetitions; ++r) {
    wait_for(device);
    const double begin = now();
    f();
    wait_for(device);
    if (r > 0) all.push_back(now() - begin);  // the first one warms up
  }
  return median(all);
}

// Parameters in one tensor, with gradients and state, as blocks.
std::vector<starling::Block> blocks_of(std::int64_t n, at::ScalarType type, at::Device device) {
  const Tensor x = random({n}, type, device).set_requires_grad(true);
  x.mutable_grad() = random({n}, type, device);
  std::vector<starling::Block> blocks;
  starling::append_blocks(blocks, {torch::optim::OptimizerParamGroup(std::vector<Tensor>{x})}, 0,
                          std::int64_t{1} << 30);  // limited by the GPU, not by the host
  for (starling::Block& block : blocks) block.keep(2);
  return blocks;
}

// torch's fused AdamW on so many parameters.
class Fused {
 public:
  Fused(std::int64_t n, at::ScalarType type, at::Device device)
      : p_{random({n}, type, device)},
        g_{random({n}, type, device)},
        m_{at::zeros_like(p_[0])},
        v_{at::zeros_like(p_[0])},
        t_{at::zeros({}, at::TensorOptions(at::kFloat).device(device))} {}
  const Tensor& parameters() const { return p_[0]; }
  void step() const {
    at::_foreach_add_(t_, 1);
    at::_fused_adamw_(p_, g_, m_, v_, {}, t_, kRule.lr, kRule.betas[0], kRule.betas[1], kRule.weight_decay,
                      kRule.eps, false, false);
  }

 private:
  const std::vector<Tensor> p_, g_, m_, v_, t_;
};

Json update(std::int64_t n, std::int64_t repetitions, at::ScalarType type, at::Device device) {
  std::vector<starling::Block> blocks = blocks_of(n, type, device);
  const double ours = median_seconds(device, repetitions, [&] {
    for (starling::Block& block : blocks) starling::update(block, kRule, {}, {});
    starling::settle(blocks);
  });
  const Tensor from = random({n}, at::kFloat, device), to = at::zeros_like(from);
  const double copy = median_seconds(device, repetitions, [&] { to.copy_(from); });
  const Fused torchs(n, type, device);
  const double fused = median_seconds(device, repetitions, [&] { torchs.step(); });
  const double values = static_cast<double>(n), moved = type == at::kFloat ? 28 : 30;
  return {{"copy_share", moved * values / ours / (8 * values / copy)},
          {"vs_torch_fused", fused / ours},
          {"starling_ms", 1e3 * ours},
          {"starling_gigabytes_per_second", 1e-9 * moved * values / ours},
          {"copy_gigabytes_per_second", 1e-9 * 8 * values / copy},
          {"torch_fused_ms", 1e3 * fused}};
}

// With one neighbour, whose blocks are in the host's memory.
Json mix(std::int64_t n, std::int64_t repetitions, at::Device device) {
  constexpr float kWeight = 0.5;
  std::vector<starling::Block> blocks = blocks_of(n, at::kFloat, device);
  const Tensor theirs = random({n}, at::kFloat, at::kCPU);
  const auto* next = static_cast<const std::byte*>(theirs.const_data_ptr());
  std::vector<starling::Arrival> arrivals;
  for (const starling::Block& block : blocks) {
    const auto bytes = static_cast<std::size_t>(block.length) * sizeof(float);
    arrivals.push_back(
        {.weight = kWeight, .theirs = starling::SentBlock({nullptr, {next, bytes}}, starling::Wire::fp32)});
    next += bytes;
  }
  const double ours = median_seconds(device, repetitions, [&] {
    for (std::size_t b = 0; b < blocks.size(); ++b) starling::update(blocks[b], kRule, {&arrivals[b], 1}, {});
    starling::settle(blocks);
  });
  const Fused torchs(n, at::kFloat, device);
  const Tensor there = at::zeros_like(torchs.parameters());
  const auto lerp = [&] { torchs.parameters().lerp_(there, kWeight), torchs.step(); };
  const double copied = median_seconds(device, repetitions, [&] { there.copy_(theirs), lerp(); });
  const double on_device = median_seconds(device, repetitions, lerp);
  return {{"starling_ms", 1e3 * ours}, {"torch_ms", 1e3 * copied}, {"torch_lerp_fused_ms", 1e3 * on_device}};
}

// A number of matrix products, put into torch's stream.
class Compute {
 public:
  Compute(std::int64_t products, at::Device device) : products(products), device_(device) {}
  void run() const {
    for (std::int64_t i = 0; i < products; ++i) at::matmul(a_, b_);
  }
  std::int64_t products;

 private:
  const at::Device device_;
  const std::int64_t side_ = device_.is_cuda() ? 4096 : 128;
  Tensor a_ = random({side_, side_}, at::kBFloat16, device_),
         b_ = random({side_, side_}, at::kBFloat16, device_);
};

std::int64_t products_in(double milliseconds, at::Device device) {
  constexpr std::int64_t kSome = 20;
  const Compute some(kSome, device);
  const double seconds = median_seconds(device, 3, [&] { some.run(); });
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(kSome * milliseconds * 1e-3 / seconds));
}

// The job of a worker, and rank 0's report. With `kill`, the worker with the last rank kills itself
// at the end.
struct StepJob {
  std::string wire, device, out{};
  std::int64_t tensors = 0, products = 0, steps = 0;
  bool kill = false;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StepJob, out, wire, device, tensors, products, steps, kill)

void work(const StepJob& job) {
  const auto world = starling::World::from_environment();
  const at::Device device = device_named(job.device);
  const Compute compute(job.products, device);
  std::vector<Tensor> x;
  for (std::int64_t k = 0; k < job.tensors; ++k) {
    x.push_back(random({1024, 1024}, at::kFloat, device).set_requires_grad(true));
    x.back().mutable_grad() = random({1024, 1024}, at::kFloat, device).mul_(1e-3);
  }
  starling::Optimizer optimizer(x, kRule, {.wire = starling::wire_named(job.wire)}, world);
  const auto mean_ms = [&](std::int64_t steps, const auto& step) {
    wait_for(device);
    const double begin = now();
    for (std::int64_t t = 0; t < steps; ++t) step();
    wait_for(device);
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

struct Arguments {
  std::string part = "all", device = "cuda";
  std::int64_t parameters = 256 << 20, repetitions = 15, compute = 100;
};

Json step(const Arguments& given) {
  constexpr std::int64_t kGpt2 = 124;  // Mi
  StepJob job{.wire = "fp32",
              .device = given.device,
              .tensors = std::clamp<std::int64_t>(given.parameters >> 20, 1, kGpt2),
              .products = products_in(static_cast<double>(given.compute), device_named(given.device)),
              .steps = given.repetitions};
  Json all{{"one_worker", worked(1, job)}};
  for (const std::string wire : {"fp32", "bf16", "int8"}) {
    job.wire = wire, job.kill = wire == "fp32";
    all["two_workers_" + wire] = worked(2, job);
  }
  return all;
}

Arguments arguments_of(int argc, char** argv) {
  Arguments given;
  const std::map<std::string, std::int64_t*> numbers{{"--parameters", &given.parameters},
                                                     {"--repetitions", &given.repetitions},
                                                     {"--compute", &given.compute}};
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    const auto number = numbers.find(name);
    if (name == "--part" && (value == "all" || value == "update" || value == "step")) {
      given.part = value;
    } else if (name == "--device" && (value == "cuda" || value == "cpu")) {
      given.device = value;
    } else if (number != numbers.end() && std::atoll(value.c_str()) >= 1) {
      *number->second = std::atoll(value.c_str());
    } else {
      throw std::invalid_argument("'" + name + "' is not allowed as it stands: --part all|update|step, " +
                                  "--device cuda|cpu, --parameters N, --repetitions N, " +
                                  "--compute MILLISECONDS");
    }
  }
  return given;
}

int run(int argc, char** argv) {
  const c10::AutoGradMode no_gradient(false);
  if (argc == 3 && argv[1] == std::string(kWorker)) {
    starling::note_interruptions();
    const auto job = nlohmann::json::parse(argv[2]).get<StepJob>();
    if (device_named(job.device).is_cuda()) {
      if (const std::string why = starling::find_cuda(); !why.empty()) throw std::runtime_error(why);
    }
    work(job);
    return 0;
  }
  const Arguments given = arguments_of(argc, argv);
  const at::Device device = device_named(given.device);
  if (device.is_cuda()) {
    if (const std::string why = starling::find_cuda(); !why.empty()) {
      std::fprintf(stderr, "bench-cuda: %s\n", why.c_str());
      return 3;
    }
  }
  Json result{{"parameters", given.parameters}, {"repetitions", given.repetitions}};
  if (given.part != "step") {
    result["update_fp32"] = update(given.parameters, given.repetitions, at::kFloat, device);
    result["update_bf16"] = update(given.parameters, given.repetitions, at::kBFloat16, device);
    result["mix_fp32"] = mix(given.parameters, given.repetitions, device);
  }
  if (given.part != "update") result["step"] = step(given);
  std::puts(result.dump(2).c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return bench::reported("bench-cuda", [&] { return run(argc, argv); });
}
