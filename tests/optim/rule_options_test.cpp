// Rules as parameter-group options, their checks, and their numbers against torch's own optimizers.
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "starling/optim/optimizer.h"
#include "starling/optim/rule_step.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using torch::optim::OptimizerParamGroup;

OptimizerParamGroup group_of(Rule rule) { return {{at::zeros({2})}, rule_options(rule)}; }

std::string said_of(const Rule& rule) {
  return refusal<UsageError>([&] { check_rule(rule); });
}

TEST(RuleOptions, CarryTheRuleAndItsLearningRate) {
  OptimizerParamGroup group = group_of(AccumAdamW{.lr = 0.25, .window = 3});
  EXPECT_EQ(rule_of(group), Rule(AccumAdamW{.lr = 0.25, .window = 3}));
  EXPECT_EQ(group.options().get_lr(), 0.25);
  group.options().set_lr(0.5);
  EXPECT_EQ(rule_of(group), Rule(AccumAdamW{.lr = 0.5, .window = 3}));
  std::get<AccumAdamW>(rule_of(group)).window = 4;
  EXPECT_EQ(std::get<AccumAdamW>(rule_of(group)).window, 4);
}

TEST(RuleOptions, ACopyOfAGroupIsIndependent) {
  OptimizerParamGroup group = group_of(SGD{.lr = 1});
  OptimizerParamGroup copy(group);
  copy.options().set_lr(2);
  EXPECT_EQ(group.options().get_lr(), 1);
  EXPECT_EQ(copy.options().get_lr(), 2);
}

TEST(RuleOptions, OfAnotherKindAreRefused) {
  OptimizerParamGroup none({at::zeros({2})});
  EXPECT_THROW(rule_of(none), UsageError);
  OptimizerParamGroup torchs({at::zeros({2})}, std::make_unique<torch::optim::AdamOptions>(1e-3));
  EXPECT_THROW(rule_of(torchs), UsageError);
}

TEST(RuleOptions, ARefusedLearningRateChangesNothing) {
  OptimizerParamGroup group = group_of(Adam{.lr = 0.25});
  EXPECT_THROW(group.options().set_lr(-1), UsageError);
  EXPECT_EQ(group.options().get_lr(), 0.25);
  group.options().set_lr(0);  // the first step of a warm-up
  EXPECT_EQ(group.options().get_lr(), 0);
}

TEST(CheckRule, NamesRuleKeyValueAndRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_THAT(said_of(SGD{.lr = -0.5}), AllOf(HasSubstr("SGD: lr = -0.5"), HasSubstr("at least 0")));
  EXPECT_THAT(said_of(Adam{.lr = nan}), HasSubstr("Adam: lr = nan"));
  EXPECT_THAT(said_of(AdamW{.lr = infinity}), HasSubstr("AdamW: lr = inf"));
  EXPECT_THAT(said_of(AdamW{.weight_decay = -1}), HasSubstr("AdamW: weight_decay = -1"));
  EXPECT_THAT(said_of(SGD{.momentum = 1}),
              AllOf(HasSubstr("SGD: momentum = 1"), HasSubstr("at least 0 and below 1")));
  EXPECT_THAT(said_of(SGD{.nesterov = true}), AllOf(HasSubstr("nesterov"), HasSubstr("momentum")));
  EXPECT_THAT(said_of(Adam{.betas = {1, 0.9}}), HasSubstr("Adam: betas[0] = 1"));
  EXPECT_THAT(said_of(AccumAdam{.betas = {0, nan}}), HasSubstr("AccumAdam: betas[1] = nan"));
  EXPECT_THAT(said_of(AccumAdamW{.eps = 0}), HasSubstr("AccumAdamW: eps = 0"));
  EXPECT_THAT(said_of(AccumAdam{.window = 0}),
              AllOf(HasSubstr("AccumAdam: window = 0"), HasSubstr("at least 1")));
  EXPECT_THROW(rule_options(AccumAdam{.window = 0}), UsageError);
}

TEST(CheckRule, AcceptsTheDefaultsAndTheBorders) {
  for (const Rule& rule : {Rule(SGD{}), Rule(Adam{}), Rule(AdamW{}), Rule(AccumAdam{}), Rule(AccumAdamW{}),
                           Rule(SGD{.lr = 0, .momentum = 0.9, .nesterov = true}),
                           Rule(AccumAdam{.betas = {0, 0}, .window = 1})}) {
    EXPECT_EQ(said_of(rule), "accepted") << rule_name(rule);
  }
}

TEST(RuleStep, KeepsAsManyStatesAsTheKernelTakes) {
  for (const Rule& rule : {Rule(SGD{}), Rule(SGD{.momentum = 0.9}), Rule(Adam{}), Rule(AdamW{}),
                           Rule(AccumAdam{}), Rule(AccumAdamW{})}) {
    for (int t = 1; t <= 8; ++t) {
      const int kernel = std::visit([](const auto& step) { return step.kStates; }, rule_step(rule, t));
      EXPECT_EQ(rule_states(rule), kernel) << rule_name(rule);
    }
  }
  EXPECT_EQ(rule_states(SGD{}), 0);
  EXPECT_EQ(rule_states(AccumAdam{}), 3);
}

TEST(KnownRules, AreAllDifferent) {
  std::set<std::string> names;
  std::set<std::string_view> keys;
  for (const Rule& rule : known_rules()) {
    EXPECT_EQ(said_of(rule), "accepted") << rule_name(rule);
    EXPECT_TRUE(names.insert(rule_name(rule)).second) << rule_name(rule);
    EXPECT_TRUE(keys.insert(rule_key(rule)).second) << rule_key(rule);
  }
  EXPECT_EQ(names.size(), std::variant_size_v<Rule>);
}

TEST(KnownRules, SayWhatTheirOptionsAndStatesAre) {
  for (const Rule& rule : known_rules()) {
    SCOPED_TRACE(rule_name(rule));
    std::vector<std::string_view> options;
    each_option(rule, [&](const RuleOption& option, const auto&) {
      options.push_back(option.name);
      EXPECT_FALSE(option.help.empty()) << option.name;
    });
    EXPECT_EQ(options.front(), "lr");
    EXPECT_EQ(std::set(options.begin(), options.end()).size(), options.size());
    for (const RuleStateName& state : rule_state_names(rule)) EXPECT_FALSE(state.torch.empty());
    EXPECT_LE(static_cast<std::size_t>(rule_states(rule)), rule_state_names(rule).size());
    Rule same = rule;
    set_rule_values(same, rule_values(rule));
    EXPECT_EQ(same, rule);
  }
  EXPECT_THAT(rule_values(SGD{.lr = 1, .momentum = 0.5, .nesterov = true, .weight_decay = 2}),
              testing::ElementsAre(1, 0.5, 1, 2));
  EXPECT_THAT(rule_values(AccumAdam{.lr = 1, .betas = {0.5, 0.25}, .eps = 2, .weight_decay = 3, .window = 4}),
              testing::ElementsAre(1, 0.5, 0.25, 2, 3, 4));
}

TEST(DecayTimes, IsOfTheRulesThatShrinkParameters) {
  EXPECT_EQ(decay_times(SGD{.weight_decay = 2}, 3), Rule(SGD{.weight_decay = 2}));
  EXPECT_EQ(decay_times(AccumAdam{.weight_decay = 2}, 3), Rule(AccumAdam{.weight_decay = 2}));
  EXPECT_EQ(decay_times(AdamW{.weight_decay = 2}, 3), Rule(AdamW{.weight_decay = 6}));
  EXPECT_EQ(decay_times(AccumAdamW{.weight_decay = 2}, 3), Rule(AccumAdamW{.weight_decay = 6}));
}

// 30 steps of a rule alone and of torch's optimizer, from the same parameters and gradients.
template <class Torch, class TorchOptions>
void compare_with_torch(const Rule& rule, const TorchOptions& options) {
  SCOPED_TRACE(rule_name(rule));
  const std::int64_t n = 1000;
  at::Tensor theirs = at::randn({n});
  at::Tensor ours = theirs.clone();
  at::Tensor m = at::zeros({n}), v = at::zeros({n}), b = at::zeros({n});
  Torch optimizer(std::vector<at::Tensor>{theirs.requires_grad_()}, options);
  for (int t = 1; t <= 30; ++t) {
    const at::Tensor g = at::randn({n});
    theirs.mutable_grad() = g.clone();
    optimizer.step();
    EXPECT_TRUE(kernels::update(rule_step(rule, t), {}, ours.data_ptr<float>(), g.data_ptr<float>(),
                                {m.data_ptr<float>(), v.data_ptr<float>(), b.data_ptr<float>()}, nullptr,
                                static_cast<std::size_t>(n)));
  }
  const double error = (theirs.detach() - ours).abs().max().item<double>();
  EXPECT_LT(error, 3e-6);  // 30 steps of a few roundings each of values around 1
  EXPECT_GT(ours.norm().item<double>(), 1);
}

TEST(RuleStep, IsTorchsOptimizer) {
  using namespace torch::optim;
  at::manual_seed(3);
  compare_with_torch<torch::optim::SGD>(starling::SGD{.lr = 0.1, .weight_decay = 0.01},
                                        SGDOptions(0.1).weight_decay(0.01));
  for (const bool nesterov : {false, true}) {
    compare_with_torch<torch::optim::SGD>(
        starling::SGD{.lr = 0.01, .momentum = 0.9, .nesterov = nesterov, .weight_decay = 0.01},
        SGDOptions(0.01).momentum(0.9).nesterov(nesterov).weight_decay(0.01));
  }
  const auto betas = std::make_tuple(0.9, 0.98);
  compare_with_torch<torch::optim::Adam>(
      starling::Adam{.lr = 0.01, .betas = {0.9, 0.98}, .weight_decay = 0.1},
      AdamOptions(0.01).betas(betas).weight_decay(0.1));
  compare_with_torch<torch::optim::AdamW>(
      starling::AdamW{.lr = 0.01, .betas = {0.9, 0.98}, .weight_decay = 0.1},
      AdamWOptions(0.01).betas(betas).weight_decay(0.1));
  compare_with_torch<torch::optim::AdamW>(
      starling::AccumAdamW{.lr = 0.01, .betas = {0.9, 0.98}, .weight_decay = 0.1, .window = 1},
      AdamWOptions(0.01).betas(betas).weight_decay(0.1));
}

}  // namespace
}  // namespace starling
