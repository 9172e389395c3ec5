// Ten losses of every rule under every scheme, three workers on different data, against golden_losses.json: a change of
// any number on the way shows. STARLING_REWRITE_GOLDEN=1 writes the file anew instead.
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tanh.h>
#include <gtest/gtest.h>

#include "starling/optim/optimizer.h"
#include "tests/optim/flock.h"

namespace starling {
namespace {

using at::Tensor;
using nlohmann::json;

// Numbers in [-scale, scale] that no library's random generator decides.
Tensor waves(std::int64_t rows, std::int64_t columns, double phase, double scale) {
  return at::sin(at::arange(rows * columns, at::kFloat) * 1.7 + phase).mul(scale).view({rows, columns});
}

// A network of one hidden layer learns a function of which each worker sees a part. The mean of the workers' losses.
std::vector<double> losses(const Rule& rule, const std::string& scheme) {
  constexpr int kWorkers = 3, kSteps = 10;
  std::vector<double> means(kSteps);
  std::mutex mutex;
  flock(kWorkers, [&](int i, World& world) {
    const Tensor inner = waves(4, 8, 0.3, 0.5).set_requires_grad(true);
    const Tensor outer = waves(8, 1, 0.8, 0.5).set_requires_grad(true);
    const Tensor inputs = waves(16, 4, i, 1), targets = inputs.sum(1, true).tanh();
    Optimizer optimizer(std::vector<Tensor>{inner, outer}, rule, {.topology = "base-2", .scheme = scheme},
                        world);
    for (int t = 0; t < kSteps; ++t) {
      optimizer.zero_grad();
      const Tensor loss = at::mse_loss(at::mm(at::tanh(at::mm(inputs, inner)), outer), targets);
      loss.backward();
      optimizer.step();
      const std::lock_guard lock(mutex);
      means[static_cast<std::size_t>(t)] += loss.item<double>() / kWorkers;
    }
  });
  return means;
}

TEST(Golden, TenLossesOfEveryRuleUnderEveryScheme) {
  const std::map<std::string, Rule> rules{
      {"SGD", SGD{.lr = 0.1, .momentum = 0.9, .nesterov = true, .weight_decay = 0.01}},
      {"Adam", Adam{.lr = 0.02, .weight_decay = 0.01}},
      {"AdamW", AdamW{.lr = 0.02}},
      {"AccumAdam", AccumAdam{.lr = 0.02, .window = 4}},
      {"AccumAdamW", AccumAdamW{.lr = 0.02, .window = 4}}};
  json now;
  for (const auto& [name, rule] : rules) {
    for (const std::string scheme : {"cta", "atc", "all-reduce"}) now[name][scheme] = losses(rule, scheme);
  }
  const char* const elsewhere = std::getenv("STARLING_GOLDEN_FILE");  // a bundle's
  const std::string file = elsewhere != nullptr ? elsewhere : STARLING_GOLDEN_FILE;
  if (std::getenv("STARLING_REWRITE_GOLDEN") != nullptr) {
    std::ofstream(file) << now.dump(1) << "\n";
    GTEST_SKIP() << file << " was written anew";
  }
  const json golden = json::parse(std::ifstream(file));
  ASSERT_EQ(golden.size(), now.size());
  for (const auto& [name, schemes] : now.items()) {
    for (const auto& [scheme, values] : schemes.items()) {
      const auto expected = golden.at(name).at(scheme).get<std::vector<double>>();
      ASSERT_EQ(expected.size(), values.size());
      EXPECT_LT(expected.back(), 0.7 * expected.front()) << name << ", " << scheme << " does not learn";
      for (std::size_t t = 0; t < expected.size(); ++t) {
        EXPECT_NEAR(values[t].get<double>(), expected[t], 1e-5 * expected[t])
            << name << ", " << scheme << ", step " << t + 1;
      }
    }
  }
}

}  // namespace
}  // namespace starling
