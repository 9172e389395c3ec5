// How fast are the update and a step on a GPU? Prints JSON; without a GPU says so, and ends with code 3.
//
//   bench-cuda [--parameters N] [--repetitions N] [--compute MS]
//
//   update   AdamW on N parameters (256 Mi, in 8 blocks) in fp32 and in bf16, in one tensor, without neighbours: bytes that the
//            formula must move (x, g, m, v read; x, m, v written: 28 per parameter in fp32, 30 in bf16) per second, as part of
//            what a copy of torch's moves [copy_share]; time of torch's fused AdamW, divided by ours [vs_torch_fused]
//   step     124 Mi parameters, AdamW: a stand-in for forward and backward that keeps the GPU busy (products of matrices, about MS
//            milliseconds, 100), then step(); ms of a whole step for one worker, and for two that share the card and mix by one
//            wire or another (threads of one process, whose blocks do not leave its memory); `compute` is without step()
// Medians; the GPU is waited for around each repetition of `update`, and at the end of the steps.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
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

#include "bench/measure.h"
#include "starling/optim/blocks.h"
#include "starling/optim/device.h"
#include "starling/optim/optimizer.h"
#include "starling/world/world.h"

namespace {

using at::Tensor;
using bench::median;
using bench::now;
using Json = nlohmann::ordered_json;

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
                          std::int64_t{1} << 30);  // the GPU, not the host that feeds it
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

// About so many milliseconds of work for the GPU, put into its stream.
class Compute {
 public:
  explicit Compute(double milliseconds)
      : a_(random({4096, 4096}, at::kBFloat16)), b_(random({4096, 4096}, at::kBFloat16)) {
    products_ = 20;
    const double seconds = median_seconds(3, [this] { run(); });
    products_ = std::max<std::int64_t>(1, static_cast<std::int64_t>(20 * milliseconds * 1e-3 / seconds));
  }
  void run() const {
    for (std::int64_t i = 0; i < products_; ++i) at::matmul(a_, b_);
  }

 private:
  Tensor a_, b_;
  std::int64_t products_;
};

// Seconds of a step of each of so many workers, which share the card.
double step_seconds(int workers, starling::Wire wire, const Compute& compute, std::int64_t steps) {
  auto worlds = starling::World::threads(workers);
  std::vector<double> seconds(static_cast<std::size_t>(workers));
  std::vector<std::string> errors(static_cast<std::size_t>(workers));
  std::vector<std::thread> threads;
  for (int i = 0; i < workers; ++i) {
    threads.emplace_back([&, i] {
      const auto me = static_cast<std::size_t>(i);
      try {
        const c10::AutoGradMode no_gradient(false);
        std::vector<Tensor> x;
        for (int k = 0; k < 124; ++k) {
          x.push_back(random({1024, 1024}, at::kFloat).set_requires_grad(true));
          x.back().mutable_grad() = random({1024, 1024}, at::kFloat).mul_(1e-3);
        }
        starling::Optimizer optimizer(x, kRule, {.wire = wire}, worlds[me]);
        double begin = 0;
        for (std::int64_t t = 0; t < steps + 3; ++t) {
          if (t == 3) wait_for_gpu(), begin = now();
          compute.run();
          optimizer.step();
        }
        wait_for_gpu();
        seconds[me] = (now() - begin) / static_cast<double>(steps);
      } catch (const std::exception& error) {
        errors[me] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const std::string& error : errors) {
    if (!error.empty()) throw std::runtime_error(error);
  }
  return median(seconds);
}

Json step(double milliseconds, std::int64_t repetitions) {
  const Compute compute(milliseconds);
  Json all{{"compute_ms", 1e3 * median_seconds(repetitions, [&] { compute.run(); })},
           {"one_worker_ms", 1e3 * step_seconds(1, starling::Wire::fp32, compute, repetitions)}};
  for (const starling::Wire wire : {starling::Wire::fp32, starling::Wire::bf16, starling::Wire::int8}) {
    all["two_workers_" + std::string(starling::name_of(wire)) + "_ms"] =
        1e3 * step_seconds(2, wire, compute, repetitions);
  }
  return all;
}

int run(int argc, char** argv) {
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
  const c10::AutoGradMode no_gradient(false);
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
