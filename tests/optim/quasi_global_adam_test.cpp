// Adam with quasi-global moments beside its equation in double, and its special cases.
#include <torch/optim/adam.h>

#include "starling/topology/schedules.h"
#include "tests/optim/bowls.h"
#include "tests/optim/every_scheme.h"

namespace starling {
namespace {

using at::Tensor;

constexpr int kMomentSteps = 20, kMomentMeans = 4;
constexpr double kOfM = 0.8, kOfV = 0.9, kSmall = 1e-3;
constexpr SGD kFalls{.lr = 0.05, .weight_decay = 0.1};

Options moments_over(const std::string& topology) {
  return {.topology = topology,
          .scheme = {"quasi-global-adam", {{"beta1", kOfM}, {"beta2", kOfV}, {"moment_eps", kSmall}}}};
}

// The workers' parameters in the end, as rows.
Tensor plain_moments(const Bowls& losses, const Schedule& schedule, int mean_every) {
  Tensor x = at::zeros_like(losses.a), m_hat = x, v_hat = x;
  for (int t = 1; t <= kMomentSteps; ++t) {
    const Tensor g = losses.a * (x - losses.c);
    const Tensor m = kOfM * m_hat + (1 - kOfM) * g, v = kOfV * v_hat + (1 - kOfV) * g * g;
    const Tensor u = m / (1 - std::pow(kOfM, t)) / ((v / (1 - std::pow(kOfV, t))).sqrt() + kSmall);
    const Tensor after =
        tensor_of_weights(schedule.at(t - 1)).mm(x - kFalls.lr * (u + kFalls.weight_decay * x));
    const Tensor d = (x - after) / (x - after).norm(2, 1, /*keepdim=*/true);
    m_hat = kOfM * m_hat + (1 - kOfM) * d;
    v_hat = kOfV * v_hat + (1 - kOfV) * d * d;
    x = after;
    if (mean_every > 0 && t % mean_every == 0) x = x.mean(0, /*keepdim=*/true).expand_as(x);
  }
  return x;
}

TEST(QuasiGlobalAdam, IsItsEquationOnARingAndOnExactSchedules) {
  const Bowls losses;
  for (const std::string topology : {"ring", "base-2", "complete"}) {
    for (const int mean_every : {0, kMomentMeans - 1, kMomentMeans}) {
      SCOPED_TRACE(topology + ", mean_every " + std::to_string(mean_every));
      Options options = moments_over(topology);
      options.mean_every = mean_every;
      const Tensor all = trained_in_bowls(losses, kFalls, options, Bowls::workers, kMomentSteps);
      const Tensor should = plain_moments(losses, make_schedule(topology, Bowls::workers), mean_every);
      EXPECT_LT(most_apart(all, should), 1e-5) << all << should;
      const bool ends_in_a_mean = mean_every == kMomentMeans;
      EXPECT_EQ(most_apart(should, should[0]) > 1e-3, topology != "complete" && !ends_in_a_mean);
    }
  }
}

// The length is that of all parameters together, in whatever blocks they lie.
TEST(QuasiGlobalAdam, DividesByTheLengthOverAllParameters) {
  const auto trained = [](std::vector<std::int64_t> sizes) {
    return results_of(3, [&](int i, World& world) {
      std::vector<Tensor> parameters;
      for (const std::int64_t size : sizes) parameters.push_back(parameter({size}));
      Optimizer optimizer(parameters, kFalls, moments_over("ring"), world);
      for (int t = 0; t < 6; ++t) {
        std::int64_t first = 0;
        for (const Tensor& p : parameters) {
          p.mutable_grad() = p.detach() - at::sin(at::arange(first, first + p.numel(), at::kFloat) + i + t);
          first += p.numel();
        }
        optimizer.step();
      }
      expect_undisturbed(optimizer);
      return at::cat(parameters).detach();
    });
  };
  const auto apart = trained({70'000, 5, 1000}), together = trained({71'005});
  for (std::size_t i = 0; i < apart.size(); ++i)
    EXPECT_TRUE(at::allclose(apart[i], together[i], 1e-4, 1e-6)) << i;
}

// Then the moments are the gradient's.
TEST(QuasiGlobalAdam, TheFirstStepIsAdams) {
  constexpr double kLr = 0.01;
  const Tensor x = parameter({300}), torchs = parameter({300});
  const Tensor g = at::sin(at::arange(300, at::kFloat));
  Optimizer optimizer({x}, SGD{.lr = kLr}, moments_over("ring"), World::alone());
  torch::optim::Adam adam({torchs}, torch::optim::AdamOptions(kLr).betas({kOfM, kOfV}).eps(kSmall));
  x.mutable_grad() = g.clone(), torchs.mutable_grad() = g;
  optimizer.step(), adam.step();
  EXPECT_TRUE(at::allclose(x, torchs, 1e-5, 1e-8)) << most_apart(x, torchs);
}

}  // namespace
}  // namespace starling
