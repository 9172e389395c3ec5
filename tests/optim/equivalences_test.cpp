// Special cases in which two schemes are the same algorithm: from the same start, on skewed losses,
// their workers have the same parameters.
#include "tests/optim/every_scheme.h"

namespace starling {
namespace {

using at::Tensor;

constexpr SGD kSgd{.lr = 0.1};
constexpr SGD kMomentum{.lr = 0.1, .momentum = 0.9};
constexpr SGD kNesterov{.lr = 0.1, .momentum = 0.9, .nesterov = true};

struct Equivalence {
  std::string name;
  Options one, other;
  Rule rule = kSgd;
  int steps = 12;
  bool to_the_bit = false;
};

// SGD that writes past the parameters' version counters, as torch's own may and many others do.
struct PastVersions final : torch::optim::SGD {
  using torch::optim::SGD::SGD;
  Tensor step(LossClosure) override {
    auto& group = param_groups().front();
    for (const Tensor& p : group.params()) p.data().sub_(p.grad() * group.options().get_lr());
    return {};
  }
};

// Each worker's parameters in the end. The rate falls in mid-run. `around`: another optimizer in
// place of the rule.
std::vector<Tensor> ends_of(const Options& options, const Rule& rule, int steps, bool around = false) {
  return results_of(4, [&](int i, World& world) {
    const Tensor p = at::sin(at::arange(1000, at::kFloat)).set_requires_grad(true);
    PastVersions inner({p}, torch::optim::SGDOptions(0.1));
    Optimizer optimizer = around ? Optimizer(inner, options, world) : Optimizer({p}, rule, options, world);
    for (int t = 0; t < steps; ++t) {
      if (t == steps / 2)
        (around ? inner.param_groups() : optimizer.param_groups())[0].options().set_lr(0.05);
      p.mutable_grad() = (0.5 + 0.3 * i) * (p.detach() - centre(i, t));
      optimizer.step();
    }
    nobody_leaves_yet(optimizer);
    return p.detach();
  });
}

class Equivalences : public testing::TestWithParam<Equivalence> {};

TEST_P(Equivalences, Hold) {
  const Equivalence& the = GetParam();
  const auto one = ends_of(the.one, the.rule, the.steps), other = ends_of(the.other, the.rule, the.steps);
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_TRUE(at::allclose(one[i], other[i], 1e-4, 1e-5)) << i << ": " << one[i][0] << other[i][0];
    if (the.to_the_bit) {
      EXPECT_TRUE(at::equal(one[i], other[i])) << i;
    }
    EXPECT_FALSE(at::equal(one[i], one[(i + 1) % one.size()])) << "workers with skewed losses differ";
  }
}

TEST(LocalSteps, AroundAnotherOptimizerAreThoseOfTheRule) {
  for (const std::string scheme : {"cta", "atc"}) {
    const Options options{.topology = "ring", .scheme = scheme, .every = 3};
    const auto one = ends_of(options, kSgd, 12), other = ends_of(options, kSgd, 12, /*around=*/true);
    for (std::size_t i = 0; i < one.size(); ++i)
      EXPECT_TRUE(at::allclose(one[i], other[i], 1e-4, 1e-5)) << scheme << i << one[i][0] << other[i][0];
  }
}

const Options kAtc{.topology = "ring", .scheme = "atc"};

INSTANTIATE_TEST_SUITE_P(
    Schemes, Equivalences,
    testing::Values(
        Equivalence{"ChocoOfAllValuesIsAtc", {.topology = "ring", .scheme = "choco"}, kAtc},
        Equivalence{"SquarmWithoutTriggerAndCompressionIsLocalMomentumSgd",
                    {.topology = "ring", .scheme = "choco", .every = 3},
                    {.topology = "ring", .scheme = "atc", .every = 3},
                    kNesterov},
        Equivalence{"SquarmWhoseTriggerAlwaysFiresIsChoco",
                    {.topology = "ring", .scheme = {"choco", {{"trigger", 1e-30}}}, .one_in = 4, .every = 2},
                    {.topology = "ring", .scheme = "choco", .one_in = 4, .every = 2},
                    kNesterov,
                    12,
                    true},
        Equivalence{"SquarmWhoseTriggerNeverFiresIsLocal",
                    {.topology = "ring", .scheme = {"choco", {{"trigger", 1e30}}}, .one_in = 4, .every = 2},
                    {.scheme = "local"},
                    kNesterov,
                    12,
                    true},
        Equivalence{"WagmaOfOneGroupIsLocalSgd",
                    {.topology = "complete", .scheme = "atc", .every = 4},
                    {.scheme = "local", .mean_every = 4},
                    kMomentum,
                    14},
        Equivalence{"PushSumOfDoublyStochasticSharesIsAtc",
                    {.topology = "ring", .scheme = "push-sum"},
                    kAtc,
                    AdamW{.lr = 0.1},
                    12,
                    true},
        Equivalence{"StalePushSumOfDoublyStochasticSharesIsCta",
                    {.topology = "ring", .scheme = {"push-sum", {{"staleness", 1}}}},
                    {.topology = "ring"},
                    AdamW{.lr = 0.1},
                    12,
                    true},
        Equivalence{"TheFirstStepOfPushDigingIsPushSum",
                    {.topology = "n-peer-exponential-1", .scheme = "push-diging"},
                    {.topology = "n-peer-exponential-1", .scheme = "push-sum"},
                    kSgd,
                    1},
        Equivalence{"TheFirstStepOfD2IsAtc",
                    {.topology = "star", .scheme = "d2"},
                    {.topology = "star", .scheme = "atc"},
                    kSgd,
                    1},
        Equivalence{"QuasiGlobalWithoutMomentumIsAtc",
                    {.topology = "ring", .scheme = {"quasi-global", {{"beta", 0.0}}}},
                    kAtc},
        Equivalence{"DecentlamWithoutMomentumIsAtc",
                    {.topology = "ring", .scheme = {"decentlam", {{"beta", 0.0}}}},
                    kAtc},
        Equivalence{"MomentumTrackingWithoutMomentumIsGradientTracking",
                    {.topology = "ring", .scheme = {"momentum-tracking", {{"beta", 0.0}}}},
                    {.topology = "ring", .scheme = "gradient-tracking"}},
        Equivalence{"TrackingAdamWithoutMomentsIsCta",
                    {.topology = "ring",
                     .scheme = {"tracking-adam", {{"beta1", 0.0}, {"beta2", 1.0}, {"floor", 1.0}}}},
                    {.topology = "ring"}},
        Equivalence{"DsgdAcWithPower0IsCta",
                    {.topology = "ring", .scheme = {"dsgd-ac", {{"power", 0.0}}}},
                    {.topology = "ring"}},
        Equivalence{"StreamingDiLoCoWithoutAlphaAndMomentumIsCta",
                    {.topology = "ring",
                     .scheme = {"streaming-diloco", {{"alpha", 0.0}}},
                     .every = 3,
                     .outer_lr = 1,
                     .outer_momentum = 0},
                    {.topology = "ring", .every = 3}},
        Equivalence{"SparseLocoOfAllValuesIsAtcAfterLocalSteps",
                    {.topology = "ring", .scheme = "sparse-loco", .every = 3, .outer_lr = 1},
                    {.topology = "ring", .scheme = "atc", .every = 3}},
        Equivalence{
            "SparseLocoOfAllValuesOverTheCompleteGraphIsDiLoCoWithOuterSgd",
            {.topology = "complete", .scheme = "sparse-loco", .every = 4, .outer_lr = 0.7},
            {.scheme = "local", .mean_every = 4, .outer = "sgd", .outer_lr = 0.7, .outer_momentum = 0},
            kMomentum,
            14},
        Equivalence{"GaslocWithLr1AndNoMomentumIsAtcAfterLocalSteps",
                    {.topology = "ring", .scheme = "gasloc", .every = 3, .outer_lr = 1, .outer_momentum = 0},
                    {.topology = "ring", .scheme = "atc", .every = 3}}),
    [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace starling
