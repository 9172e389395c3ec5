// Exact averages: of tensors of every type, of a model's buffers, and with workers that do not
// come. Workers are threads.
#include "starling/optim/average.h"

#include <complex>

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include "tests/eventually.h"
#include "tests/optim/flock.h"

namespace starling {
namespace {

using at::Tensor;
using testing::HasSubstr;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kHuge = 3e38;  // twice as much is no float

// This worker has x, another one 3, which counts or not.
TEST(Average, LeavesOutWhatIsNotFiniteOrHasJumpedWhileOthersAreLeft) {
  struct Case {
    float x;
    std::optional<bool> is_apart;
    bool other_counts;  // at first; then always
    FiniteAverage expected;
    float mean;
  };
  const float nan = std::nanf("");
  for (const auto& [x, is_apart, other_counts, expected, mean] :
       std::vector<Case>{{1, {}, true, {.share = 1}, 2},
                         {1, false, true, {.share = 1}, 2},
                         {1, false, false, {.share = 0.5}, 1},
                         {1, true, true, {.counts = false, .share = 0.5}, 3},
                         {1, true, false, {.share = 1}, 2},
                         {nan, {}, true, {.finite = false, .counts = false, .share = 0.5}, 3},
                         {nan, {}, false, {.finite = false, .counts = false, .share = 0}, 0},
                         {nan, true, true, {.finite = false, .counts = false, .share = 0.5}, 3},
                         {nan, false, false, {.finite = false, .counts = false, .share = 0.5}, 3}}) {
    SCOPED_TRACE(fmt::format("{}, apart: {}, the other counts: {}", x,
                             !is_apart   ? "unknown"
                             : *is_apart ? "yes"
                                         : "no",
                             other_counts));
    std::vector<float> values{x};
    bool counts = other_counts;
    const FiniteAverage average = average_finite(
        values,
        [&](std::span<float> all) {
          if (std::exchange(counts, true)) all[0] += 3, all[1] += 1;
          for (float& one : all) one /= 2;
          return true;
        },
        is_apart);
    EXPECT_FALSE(average.alone);
    EXPECT_EQ(average.finite, expected.finite);
    EXPECT_EQ(average.counts, expected.counts);
    EXPECT_EQ(average.share, expected.share);
    EXPECT_EQ(values, std::vector{mean});
  }
}

TEST(Average, NeedsNoOptimizerAndTakesAnyTensor) {
  flock(kWorkers, [&](int i, World& world) {
    const Tensor x = parameter({3, 5}, 1.0 + i), narrow = at::full({2}, 1.0 + i, at::kBFloat16),
                 count = at::full({2}, i, at::kLong), column = at::full({4, 3}, 1.0 + i).select(1, 1);
    // It lies in memory as the negative.
    const Tensor negated = at::_neg_view(at::full({2}, 1.0 + i));
    EXPECT_EQ(average({x, count, narrow, at::zeros({0}), column, negated}, world), kWorkers);
    EXPECT_TRUE(is_all(negated, -2));
    EXPECT_TRUE(is_all(x, 2));
    EXPECT_TRUE(is_all(narrow.to(at::kFloat), 2));
    EXPECT_TRUE(is_all(column, 2));
    EXPECT_TRUE(at::equal(count, at::full({2}, kWorkers - 1, at::kLong)));
    EXPECT_TRUE(x.requires_grad());
    EXPECT_EQ(average({}, world), kWorkers);
  });
}

// Values of the workers and their mean, in every type. Equal values keep all their bits.
TEST(Average, IsExactInEveryType) {
  struct Case {
    std::vector<double> of;
    double mean;
  };
  const Case cases[] = {{{0.1, 0.1, 0.1}, 0.1},  {{-kInf, -kInf, -kInf}, -kInf},
                        {{kInf, 1, 2}, kInf},    {{1, 2, -kInf}, -kInf},
                        {{1, kInf, -kInf}, NAN}, {{1, NAN, 3}, 2},
                        {{NAN, NAN, 4}, 4},      {{NAN, NAN, NAN}, NAN},
                        {{kHuge, -kHuge, 0}, 0}, {{kHuge, kHuge, kHuge}, kHuge},
                        {{1, 2, 6}, 3},          {{1e-39, 1e-39, 1e-39}, 1e-39}};
  for (const at::ScalarType type :
       {at::kFloat, at::kDouble, at::kBFloat16, at::kComplexFloat, at::kComplexDouble}) {
    flock(kWorkers, [&](int i, World& world) {
      std::vector<Tensor> mine;
      for (const Case& one : cases)
        mine.push_back(at::full({2}, one.of[static_cast<std::size_t>(i)], at::kDouble).to(type));
      average(mine, world);
      for (std::size_t k = 0; k < mine.size(); ++k) {
        const auto& [of, mean] = cases[k];
        const Tensor right = at::full({2}, mean, at::kDouble).to(type);
        const auto far = [&] { return (mine[k] - right).abs().max().item<double>(); };
        const bool same = std::ranges::adjacent_find(of, std::not_equal_to<>()) == of.end();
        const double largest =
            *std::ranges::max_element(of, {}, [](double x) { return std::isnan(x) ? 0 : std::abs(x); });
        const bool good = std::isnan(mean)               ? at::isnan(mine[k]).all().item<bool>()
                          : same || !std::isfinite(mean) ? at::equal(mine[k], right)
                                                         : far() <= 1e-6 * std::abs(largest);
        EXPECT_TRUE(good) << c10::toString(type) << ", case " << k << ": " << mine[k];
      }
    });
  }
  // float64 keeps what float would round, and complex numbers are averaged as such.
  flock(kWorkers, [&](int i, World& world) {
    const Tensor wide = at::full({1}, 1.0 + (i - 1) * 0x1p-40, at::kDouble);
    const Tensor turns = at::polar(at::ones({1}), at::full({1}, 0.1F * static_cast<float>(i + 1)));
    average({wide, turns}, world);
    EXPECT_EQ(wide.item<double>(), 1.0);
    std::complex<double> mean = 0;
    for (int k = 1; k <= kWorkers; ++k) mean += std::polar(1.0, 0.1 * k) / double{kWorkers};
    EXPECT_LT(std::abs(std::complex<double>(turns.item<c10::complex<double>>()) - mean), 1e-6);
  });
}

// Numbers that are NaN on purpose at the same place of all workers stay so, and cost no others.
TEST(Average, AWorkerWithANaNIsLeftOutOfThatTensorAndSaysSo) {
  std::vector<LogLines> said(kWorkers);
  flock(kWorkers, [&](int i, World& world) {
    world.log = said[static_cast<std::size_t>(i)].log();
    const double at_two = i == 2 ? NAN : 1.0 + i;
    const Tensor good = at::full({2}, 1.0 + i), bad = at::full({2}, at_two), wide = bad.to(at::kDouble);
    const Tensor on_purpose = at::full({2}, 1.0 + i);
    on_purpose[0] = NAN;
    const Tensor one = at::full({2}, 1.0 + i);
    if (i == 1) one[1] = NAN;
    average({good, bad, wide, on_purpose, one}, world);
    EXPECT_TRUE(is_all(good, 2)) << good;
    EXPECT_TRUE(is_all(bad, 1.5)) << bad;
    EXPECT_TRUE(is_all(wide, 1.5)) << wide;
    EXPECT_TRUE(at::isnan(on_purpose[0]).item<bool>());
    EXPECT_NEAR(on_purpose[1].item<double>(), 2, 1e-6);
    EXPECT_TRUE(is_all(one, 2)) << one;
  });
  EXPECT_EQ(said[0].text(), "");
  EXPECT_EQ(said[1].text(),
            "average: tensor 4 has NaN at this worker, which gets the average of the others\n");
  EXPECT_THAT(said[2].text(), HasSubstr("tensor 1 (and 1 more) has NaN at this worker"));
}

TEST(Average, RefusesWhatDiffersAndWhatHasNoMean) {
  flock(kWorkers, [&](int i, World& world) {
    EXPECT_THAT(refusal<UsageError>([&] { average({at::zeros({2 + i})}, world); }),
                HasSubstr("differ in tensor 0: Float 2 at worker 0, Float 3 at worker 1"));
    const std::pair<Tensor, const char*> cases[] = {
        {at::zeros({2}).to_sparse(), "tensor 0 is sparse: to be averaged it must be dense"},
        {at::zeros({1}).expand({3}), "tensor 0 is expanded: values share memory"},
        {Tensor(), "tensor 0 is undefined"}};
    for (const auto& [tensor, text] : cases)
      EXPECT_THAT(refusal<UsageError>([&] { average({tensor}, world); }), HasSubstr(text));
  });
}

// A buffer that was made in inference mode cannot be written outside.
TEST(Consensus, ThatFailsPutsThisWorkersParametersBack) {
  flock(2, [](int i, World& world) {
    world.log = [](Level, const std::string&) {};
    const Tensor p = parameter({4});
    const std::vector<torch::optim::OptimizerParamGroup> groups{{std::vector<Tensor>{p}}};
    Optimizer optimizer(groups, SGD{}, {}, world, {at::zeros({2})});
    p.detach().fill_(i);
    {
      const c10::InferenceMode inference;
      optimizer.set_buffers({at::zeros({2})});
    }
    EXPECT_THAT(refusal<c10::Error>([&] { const Consensus average(optimizer); }), HasSubstr("inference"));
    EXPECT_TRUE(is_all(p, i)) << p;
    optimizer.set_buffers({at::zeros({2})});
    EXPECT_EQ(Consensus(optimizer).workers(), 2);
  });
}

// A causal mask, a rotary embedding and wide statistics, as models keep them.
TEST(Consensus, AveragesBuffersOfEveryType) {
  flock(kWorkers, [](int i, World& world) {
    const Tensor mask = at::full({3, 3}, -kInf).triu(1);
    const Tensor turns = at::polar(at::ones({4}), at::arange(4, at::kFloat));
    const Tensor wide = at::zeros({2}, at::kDouble), count = at::zeros({}, at::kLong);
    const Tensor given[] = {mask.clone(), turns.clone()};
    const std::vector<torch::optim::OptimizerParamGroup> groups{{std::vector<Tensor>{parameter({4})}}};
    Optimizer optimizer(groups, SGD{}, {}, world, {mask, turns, wide, count});
    wide.fill_(1.0 + (i - 1) * 0x1p-40);
    count.fill_(i);
    {
      const Consensus average(optimizer);
      EXPECT_TRUE(at::equal(mask, given[0]));
      EXPECT_TRUE(at::equal(turns, given[1]));
      EXPECT_TRUE(at::equal(wide, at::ones({2}, at::kDouble)));
      EXPECT_EQ(count.item<std::int64_t>(), kWorkers - 1);
    }
    EXPECT_EQ(wide[0].item<double>(), 1.0 + (i - 1) * 0x1p-40);
  });
}

// Statistics of a BatchNorm after one input that was NaN: in worker 2's parameters too, or in its
// buffers alone.
TEST(Consensus, AWorkerThatIsNotFiniteGivesNoBuffers) {
  for (const bool parameters_too : {true, false}) {
    LogLines said;
    flock(kWorkers, [&](int i, World& world) {
      if (i == 2) world.log = said.log();
      const Tensor mean = at::zeros({2}), variance = at::zeros({2}), count = at::zeros({}, at::kLong);
      const std::vector<torch::optim::OptimizerParamGroup> groups{{std::vector<Tensor>{parameter({4})}}};
      Optimizer optimizer(groups, SGD{}, {}, world, {mean, variance, count});
      mean.fill_(i == 2 ? NAN : 1.0 + i);
      variance.fill_(i == 2 ? 100.0 : 1.0 + i);
      count.fill_(10 * i);
      if (i == 2 && parameters_too) optimizer.param_groups()[0].params()[0].detach().fill_(NAN);
      {
        const Consensus average(optimizer);
        EXPECT_EQ(average.workers(), parameters_too ? 2 : 3);
        EXPECT_TRUE(is_all(mean, 1.5)) << mean;
        EXPECT_TRUE(is_all(variance, parameters_too ? 1.5 : 103.0 / 3)) << variance;
        EXPECT_EQ(count.item<std::int64_t>(), parameters_too ? 10 : 20);
      }
      EXPECT_EQ(at::isnan(mean).all().item<bool>(), i == 2);
    });
    EXPECT_THAT(
        said.all(),
        testing::ElementsAre(HasSubstr(parameters_too ? "consensus: this worker's parameters are not finite"
                                                      : "average: buffer 0 has NaN at this worker")));
  }
}

TEST(Consensus, BuffersThatWereReplacedAreAveragedAndMustBeAlike) {
  flock(kWorkers, [](int i, World& world) {
    const std::vector<torch::optim::OptimizerParamGroup> groups{{std::vector<Tensor>{parameter({4})}}};
    Optimizer optimizer(groups, SGD{}, {}, world, {at::zeros({2})});
    const Tensor now = at::full({2}, 1.0 + i);
    optimizer.set_buffers({now});
    {
      const Consensus average(optimizer);
      EXPECT_TRUE(is_all(now, 2));
    }
    EXPECT_TRUE(is_all(now, 1.0 + i));
    const auto refused = [&](const std::vector<Tensor>& buffers) {
      optimizer.set_buffers(buffers);
      return refusal<UsageError>([&] { Consensus average(optimizer); });
    };
    EXPECT_EQ(refused({now, i == 2 ? at::zeros({2, 1}) : at::zeros({2})}),
              fmt::format("the workers differ in buffer 1: {} on this one; it must be the same on all",
                          i == 2 ? "Float 2x1" : "Float 2"));
    EXPECT_EQ(
        refused(i == 2 ? std::vector<Tensor>{} : std::vector<Tensor>{now}),
        fmt::format("the workers differ in number of buffers: {} on this one; it must be the same on all",
                    i == 2 ? 0 : 1));
    optimizer.set_buffers({now});
    EXPECT_EQ(Consensus(optimizer).workers(), kWorkers);
  });
}

TEST(Consensus, WithinItNothingIsSteppedOrLoaded) {
  flock(2, [](int i, World& world) {
    for (const std::string scheme : {"cta", "atc", "a2cid2"}) {
      const Tensor x = parameter({4}, 1);
      Optimizer optimizer({x}, SGD{.lr = 1}, {.topology = "ring", .scheme = scheme}, world);
      x.mutable_grad() = at::full({4}, 2.0 * i);
      optimizer.step();
      const OptimizerState state = optimizer.state();
      {
        const Consensus average(optimizer);
        EXPECT_THAT(refusal<UsageError>([&] { optimizer.step(); }), HasSubstr("step() within consensus()"));
        EXPECT_THAT(refusal<UsageError>([&] { optimizer.set_state(state); }),
                    HasSubstr("within consensus()"));
        EXPECT_THAT(refusal<UsageError>([&] { optimizer.restart(0); }), HasSubstr("within consensus()"));
        EXPECT_THAT(refusal<UsageError>([&] { optimizer.begin_again(); }),
                    HasSubstr("begin_again() within consensus()"));
      }
      optimizer.step();
    }
  });
}

TEST(Consensus, SaysWhoHasLeftBeforeIt) {
  LogLines heard;
  std::atomic<bool> left = false;
  flock(2, [&](int i, World& world) {
    world.log = heard.log();
    auto optimizer =
        std::make_unique<Optimizer>(std::vector<Tensor>{parameter({4})}, SGD{}, Options{}, world);
    EXPECT_EQ(Consensus(*optimizer).workers(), 2);
    optimizer->step();
    if (i == 1) {
      optimizer.reset();
      left = true;
    } else {
      EXPECT_TRUE(eventually([&] { return left.load(); }));
      EXPECT_EQ(Consensus(*optimizer).workers(), 1);
      EXPECT_EQ(Consensus(*optimizer).workers(), 1);
    }
  });
  EXPECT_THAT(heard.all(),
              testing::ElementsAre(HasSubstr("an average goes on without worker 1, which has left")));
}

TEST(Optimizer, AWorkerThatFailsSaysSoAndOneThatEndsDoesNot) {
  for (const bool fails : {true, false}) {
    LogLines heard;
    std::atomic<bool> left = false;
    flock(2, [&](int i, World& world) {
      world.log = heard.log();
      auto optimizer =
          std::make_unique<Optimizer>(std::vector<Tensor>{parameter({4})}, SGD{}, Options{}, world);
      optimizer->step();
      if (i == 1) {
        if (fails) optimizer->fails();
        optimizer.reset();
        left = true;
      } else {
        EXPECT_TRUE(eventually([&] { return left.load(); }));
        for (int t = 0; t < 3; ++t) optimizer->step();
      }
    });
    if (fails)
      EXPECT_THAT(heard.all(), testing::ElementsAre(HasSubstr("worker 1 has left with an error")));
    else
      EXPECT_THAT(heard.all(), testing::IsEmpty());
  }
}

}  // namespace
}  // namespace starling
