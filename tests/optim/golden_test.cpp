// Ten losses of every rule under the schemes of golden_losses.json, with three workers on different
// data. A change of any number on the way shows. STARLING_REWRITE_GOLDEN=1 writes the file anew.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tests/optim/flock.h"

namespace starling {
namespace {

using at::Tensor;
using nlohmann::json;

// Numbers in [-scale, scale] that no library's random generator decides.
Tensor waves(std::int64_t rows, std::int64_t columns, double phase, double scale) {
  return at::sin(at::arange(rows * columns, at::kFloat) * 1.7 + phase).mul(scale).view({rows, columns});
}

// A network of one hidden layer learns a function. Each worker sees a part of it. Returns the mean
// of the workers' losses.
std::vector<double> losses(const Rule& rule, const std::string& scheme) {
  constexpr int kWorkers = 3, kSteps = 10;
  std::vector<double> means(kSteps);
  std::mutex mutex;
  flock(kWorkers, [&](int i, World& world) {
    const Tensor inner = waves(4, 8, 0.3, 0.5).set_requires_grad(true);
    const Tensor outer = waves(8, 1, 0.8, 0.5).set_requires_grad(true);
    const Tensor inputs = waves(16, 4, i, 1), targets = inputs.sum(1, true).tanh();
    Optimizer optimizer({inner, outer}, rule, {.topology = "base-2", .scheme = scheme}, world);
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

const std::map<std::string, Rule> kGoldenRules{
    {"SGD", SGD{.lr = 0.1, .momentum = 0.9, .nesterov = true, .weight_decay = 0.01}},
    {"Adam", Adam{.lr = 0.02, .weight_decay = 0.01}},
    {"AdamW", AdamW{.lr = 0.02}},
    {"AccumAdam", AccumAdam{.lr = 0.02, .window = 4}},
    {"AccumAdamW", AccumAdamW{.lr = 0.02, .window = 4}}};

// A rule and a scheme in each line.
void write_golden(const std::string& file, const json& golden) {
  std::ofstream out(file);
  std::string rule_end = "{\n";
  for (const auto& [rule, schemes] : golden.items()) {
    out << rule_end << " \"" << rule << "\": {";
    std::string end = "\n";
    for (const auto& [scheme, values] : schemes.items()) {
      out << end << "  \"" << scheme << "\": " << values.dump();
      end = ",\n";
    }
    out << "}";
    rule_end = ",\n";
  }
  out << "\n}\n";
}

TEST(Golden, TenLossesOfEveryRuleUnderItsSchemes) {
  const char* const elsewhere = std::getenv("STARLING_GOLDEN_FILE");  // a bundle's
  const std::string file = elsewhere != nullptr ? elsewhere : STARLING_GOLDEN_FILE;
  const json golden = json::parse(std::ifstream(file));
  const bool rewrites = std::getenv("STARLING_REWRITE_GOLDEN") != nullptr;
  json now;
  ASSERT_EQ(golden.size(), kGoldenRules.size());
  for (const auto& [name, rule] : kGoldenRules) {
    for (const auto& [scheme, values] : golden.at(name).items()) {
      SCOPED_TRACE(name + ", " + scheme);
      now[name][scheme] = losses(rule, scheme);
      if (rewrites) continue;
      const auto expected = values.get<std::vector<double>>(),
                 found = now[name][scheme].get<std::vector<double>>();
      ASSERT_EQ(expected.size(), found.size());
      EXPECT_LT(expected.back(), 0.7 * expected.front()) << "does not learn";
      for (std::size_t t = 0; t < expected.size(); ++t)
        EXPECT_NEAR(found[t], expected[t], 1e-5 * expected[t]) << "step " << t + 1;
    }
    EXPECT_GE(now[name].size(), 3U);
  }
  if (!rewrites) return;
  write_golden(file, now);
  GTEST_SKIP() << file << " was written anew";
}

}  // namespace
}  // namespace starling
