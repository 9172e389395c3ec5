// Decentralized AMSGrad beside the paper's equation in double, its special cases, and what it is
// for. scheme_equations_test.cpp has it in a training loop.
#include "starling/topology/schedules.h"
#include "tests/optim/bowls.h"
#include "tests/optim/every_scheme.h"
#include "tests/optim/fragile_network.h"

namespace starling {
namespace {

using namespace std::chrono_literals;
using at::Tensor;
using testing::HasSubstr;

constexpr int kAmsgradSteps = 20;
constexpr double kBeta1 = 0.8, kBeta2 = 0.9, kLeast = 0.02;
constexpr SGD kDecays{.lr = 0.05, .weight_decay = 0.1};

Options amsgrad_over(const std::string& topology) {
  return {.topology = topology,
          .scheme = {"tracking-adam", {{"beta1", kBeta1}, {"beta2", kBeta2}, {"floor", kLeast}}}};
}

// The workers' parameters in the end, as rows.
Tensor plain_amsgrad(const Bowls& losses, const Schedule& schedule) {
  Tensor x = at::zeros_like(losses.a), m = x, v = x, v_hat = at::full_like(x, kLeast), u = v_hat;
  for (int t = 0; t < kAmsgradSteps; ++t) {
    const Tensor w = tensor_of_weights(schedule.at(t)), g = losses.a * (x - losses.c);
    m = kBeta1 * m + (1 - kBeta1) * g;
    v = kBeta2 * v + (1 - kBeta2) * g * g;
    u = w.mm(u);
    x = w.mm(x) - kDecays.lr * (m / u.clamp_min(kLeast).sqrt() + kDecays.weight_decay * x);
    const Tensor largest = at::maximum(v_hat, v);
    u = u + largest - v_hat;
    v_hat = largest;
  }
  return x;
}

Tensor amsgrad(const Bowls& losses, const Options& options, int n) {
  return trained_in_bowls(losses, kDecays, options, n, kAmsgradSteps);
}

TEST(TrackingAdam, IsThePapersEquationOnARingAndOnExactSchedules) {
  const Bowls losses;
  for (const std::string topology : {"ring", "base-2", "complete"}) {
    SCOPED_TRACE(topology);
    const Tensor should = plain_amsgrad(losses, make_schedule(topology, Bowls::workers));
    const Tensor all = amsgrad(losses, amsgrad_over(topology), Bowls::workers);
    EXPECT_LT(most_apart(all, should), 1e-5) << all << should;
    EXPECT_GT(most_apart(should, should[0]), 1e-2) << "workers with skewed losses differ";
  }
}

// Torch's AMSGrad corrects the bias of both moments, and divides by this step's maximum.
TEST(TrackingAdam, AloneItIsAmsgradWithTheMaximumOfTheLastStep) {
  const Bowls losses;
  Tensor x = at::zeros_like(losses.a[0]), m = x, v = x, v_hat = at::full_like(x, kLeast);
  for (int t = 0; t < kAmsgradSteps; ++t) {
    const Tensor g = losses.a[0] * (x - losses.c[0]);
    m = kBeta1 * m + (1 - kBeta1) * g;
    v = kBeta2 * v + (1 - kBeta2) * g * g;
    x = x - kDecays.lr * (m / v_hat.sqrt() + kDecays.weight_decay * x);
    v_hat = at::maximum(v_hat, v);
  }
  EXPECT_LT(most_apart(amsgrad(losses, amsgrad_over("ring"), 1)[0], x), 1e-5);
}

TEST(TrackingAdam, OnEqualDataWorkersAreTheSingleOne) {
  const Bowls losses = Bowls().equal();
  const Tensor single = amsgrad(losses, amsgrad_over("ring"), 1)[0];
  for (const std::string topology : {"ring", "base-2", "complete"})
    EXPECT_LT(most_apart(amsgrad(losses, amsgrad_over(topology), Bowls::workers), single), 1e-5) << topology;
}

// Three workers want 0, 1 and 10. Adam's steps have equal sizes, whatever the gradients', so its
// workers meet near the median.
TEST(TrackingAdam, OneSecondMomentLeadsToTheCommonOptimum) {
  constexpr std::array<double, 3> kWanted{0, 1, 10};
  const auto mean = [&](const Options& options, const Rule& rule) {
    const auto ends = results_of(3, [&](int i, World& world) {
      const Tensor x = parameter({4});
      Optimizer optimizer({x}, rule, options, world);
      for (int t = 0; t < 1000; ++t) {
        x.mutable_grad() = x.detach() - kWanted[static_cast<std::size_t>(i)];
        optimizer.step();
      }
      nobody_leaves_yet(optimizer);
      return x[0].item<double>();
    });
    return std::accumulate(ends.begin(), ends.end(), 0.0) / 3;
  };
  EXPECT_NEAR(mean({.topology = "complete", .scheme = {"tracking-adam", {{"floor", 1.0}}}}, SGD{.lr = 0.05}),
              11.0 / 3, 0.05);
  EXPECT_LT(mean({.topology = "complete"}, Adam{.lr = 0.05}), 2);
}

TEST(TrackingAdam, ALostExchangeKeepsTheSumOfTheSecondMoments) {
  constexpr int kMany = 4;
  for (const Wire wire : {Wire::fp32, Wire::bf16}) {
    SCOPED_TRACE(name_of(wire));
    Options options = amsgrad_over("ring");
    options.wire = wire;
    std::uint64_t lost = 0;
    double tracked = 0, own = 0, moved = 0;  // one worker at a time adds to them
    fragile_flock(kMany, [&](int rank, World& world, VirtualTime& time, FragileNetwork& network) {
      const Tensor x = parameter({20, 25});  // crosses a link in 4 ms
      Optimizer optimizer({x}, SGD{.lr = 0.01}, options, world);
      if (rank == 0) network.break_often(time, 100);
      for (int t = 0; t < 240; ++t) {
        time.sleep(10ms);
        x.mutable_grad() = at::full({20, 25}, rank + std::sin(t));
        optimizer.step();
      }
      optimizer.wait_for_all();
      const OptimizerState state = optimizer.state();
      const Tensor u = state.tensors.at("tracked.0.0"), v_hat = state.tensors.at("own.0.0");
      tracked += u.to(at::kDouble).mean().item<double>();
      own += v_hat.to(at::kDouble).mean().item<double>();
      moved = std::max(moved, most_apart(u, v_hat));
      const Statistics now = optimizer.statistics();
      lost += now.aborted + now.late;
      nobody_leaves_yet(optimizer);
    });
    EXPECT_GT(lost, 0U) << "nothing was lost";
    EXPECT_GT(own, 10);
    EXPECT_GT(moved, 1);
    EXPECT_NEAR(tracked, own, 1e-3);
  }
}

TEST(TrackingAdam, TheSecondMomentsOutliveAMeanThatIsKept) {
  constexpr double kSize = 3, kRate = 0.05;
  constexpr int kBefore = 10;
  flock(3, [&](int, World& world) {
    const Tensor x = parameter({4});
    Optimizer optimizer({x}, SGD{.lr = kRate}, amsgrad_over("ring"), world);
    const auto step = [&] {
      x.mutable_grad() = at::full({4}, kSize);
      optimizer.step();
    };
    for (int t = 0; t < kBefore; ++t) step();
    Consensus(optimizer).keep();
    const double before = x[0].item<double>(), v_hat = (1 - std::pow(kBeta2, kBefore)) * kSize * kSize;
    step();
    EXPECT_NEAR(before - x[0].item<double>(), kRate * (1 - kBeta1) * kSize / std::sqrt(v_hat), 1e-5);
    nobody_leaves_yet(optimizer);
  });
}

// The second parameter's gradients have another order in memory. 1e30 is finite, its square is not.
TEST(TrackingAdam, AValueThatIsNotFiniteCountsAsZero) {
  const auto trained = [](const std::vector<float>& bad, LogLines& warned) {
    World world = World::alone();
    world.log = warned.log();
    const Tensor p = parameter({300}), q = parameter({6, 4});
    Optimizer optimizer({p, q}, kDecays, amsgrad_over("ring"), world);
    for (std::size_t t = 0; t < 8; ++t) {
      p.mutable_grad() = p.detach() - centre(0, static_cast<int>(t));
      q.mutable_grad() = at::arange(24, at::kFloat).view({4, 6}).t() - 5.0;
      if (t >= 2 && t < 2 + bad.size()) {
        p.mutable_grad()[7] = bad[t - 2];
        q.mutable_grad()[5][0] = bad[t - 2];
      }
      optimizer.step();
    }
    return at::cat({p.detach(), q.detach().flatten()});
  };
  LogLines bad, zero;
  const Tensor one = trained({NAN, INFINITY, 1e30F}, bad), other = trained({0, 0, 0}, zero);
  EXPECT_TRUE(at::equal(one, other));
  EXPECT_THAT(bad.all(), testing::ElementsAre(HasSubstr("the gradient is not finite")));
  EXPECT_THAT(zero.all(), testing::IsEmpty());
}

}  // namespace
}  // namespace starling
