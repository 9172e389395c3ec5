// The update's promises beside its formulas: mixing alone, memory that may be shared, values that
// are not finite, scaled and cleared gradients, and the choice of the instruction set.
#include "tests/kernels/update.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "starling/core/error.h"

namespace starling::kernels {
namespace {

STARLING_EVERY_ISA(Update);

TEST_P(Update, WithoutAGradientItOnlyMixes) {
  const std::size_t n = 100;
  const AdamW o{.lr = 0.1, .weight_decay = 0.5};
  Worker worker(n);
  worker.m = worker.v = worker.b = random_values(n, 3);
  const Worker before = worker;
  const Neighbours near(3, n, 5);
  update(AdamStep::at(o, true, 1), near.mixes(worker.outgoing), worker, nullptr);
  for (std::size_t i = 0; i < n; ++i) {
    EXPECT_NEAR(worker.x[i], near.mixed(before.x[i], before.outgoing[i], i), 1e-6);
  }
  EXPECT_TRUE(same_bits(worker.m, before.m));
  EXPECT_TRUE(same_bits(worker.v, before.v));
  EXPECT_TRUE(same_bits(worker.b, before.b));

  Worker alone(n);
  update(AdamStep::at(o, true, 1), {}, alone.x.data(), nullptr, alone.state(), nullptr, n);
  EXPECT_TRUE(same_bits(alone.x, before.x));
}

TEST_P(Update, TheWireMayLieWhereMineLies) {
  const std::size_t n = 1500;
  const Adam o{.lr = 0.01};
  const Values g = random_values(n, 4);
  const Neighbours near(4, n, 5);
  Worker separate(n), aliased(n);
  // Not equal to x: the parameters were changed between steps.
  const Values mine = random_values(n, 6);
  aliased.outgoing = mine;
  update(AdamStep::at(o, false, 1), near.mixes(mine), separate, g.data());
  update(AdamStep::at(o, false, 1), near.mixes(aliased.outgoing), aliased, g.data());
  EXPECT_TRUE(same_bits(separate.x, aliased.x));
  EXPECT_TRUE(same_bits(separate.outgoing, aliased.outgoing));
}

TEST_P(Update, SaysWhetherAllIsFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const SGD o{.lr = 1};
  for (const std::size_t n : {1u, 5u, 512u, 1031u}) {
    for (const std::size_t at : {std::size_t{0}, n / 2, n - 1}) {
      for (const float bad : {infinity, -infinity, nan, -nan}) {
        Values x(n, std::numeric_limits<float>::max()), g(n, 0.0f);
        EXPECT_TRUE(update(SgdStep::at(o, 1), {}, x.data(), g.data(), {}, nullptr, n));
        g[at] = bad;
        EXPECT_FALSE(update(SgdStep::at(o, 1), {}, x.data(), g.data(), {}, nullptr, n)) << at << " of " << n;
        x.assign(n, -std::numeric_limits<float>::max());
        Values theirs(n, 0.0f);
        theirs[at] = bad;
        const Mix edge{0.5f, theirs.data(), g.data()};
        g.assign(n, 0.0f);
        EXPECT_FALSE(update(SgdStep::at(o, 1), {&edge, 1}, x.data(), nullptr, {}, nullptr, n))
            << at << " of " << n;
      }
    }
  }
}

// Mixing takes from one worker what it adds to the other: to the bit, for any weight. At x = 0 the
// step shows the addition unrounded.
TEST_P(Update, DeltasOfAnEdgeSumToZero) {
  const std::size_t n = 2000;
  std::mt19937 generator(8);
  std::uniform_real_distribution<float> weight(0, 1);
  for (std::uint32_t round = 0; round < 50; ++round) {
    const Values qi = random_values(n, 2 * round, 1e3f);
    const Values qj = random_values(n, 2 * round + 1, 1e-3f);
    const float w = weight(generator);
    Values di(n, 0.0f), dj(n, 0.0f);
    const Mix to_i{w, qj.data(), qi.data()};
    const Mix to_j{w, qi.data(), qj.data()};
    update(SgdStep{}, {&to_i, 1}, di.data(), nullptr, {}, nullptr, n);
    update(SgdStep{}, {&to_j, 1}, dj.data(), nullptr, {}, nullptr, n);
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(di[i] + dj[i], 0.0f);
    ASSERT_THAT(di, testing::Contains(testing::Ne(0.0f)));
  }
}

TEST_P(Update, AScaledGradientIsTheGradientTimesTheScaleToTheBit) {
  const std::size_t n = 333;
  const AdamW o{};
  const Values g = random_values(n, 2);
  Values scaled = g;
  for (float& value : scaled) value *= 0.123f;
  Worker a(n), b(n);
  GetParam().update(AdamStep::at(o, true, 1), {}, a.x.data(), {g.data(), 0.123f}, a.state(), {}, n);
  GetParam().update(AdamStep::at(o, true, 1), {}, b.x.data(), {scaled.data()}, b.state(), {}, n);
  EXPECT_TRUE(same_bits(a.x, b.x));
  EXPECT_TRUE(same_bits(a.v, b.v));
}

TEST_P(Update, AGradientThatIsClearedIsReadBefore) {
  for (const std::size_t n : {1u, 63u, 64u, 333u}) {
    const AdamW o{};
    const Values g = random_values(n + 2, 2);
    Values cleared = g;
    Worker a(n), b(n);
    float* const at = cleared.data() + 1;  // its surroundings stay
    GetParam().update(AdamStep::at(o, true, 1), {}, a.x.data(), {at, 0.5f, at}, a.state(), {}, n);
    GetParam().update(AdamStep::at(o, true, 1), {}, b.x.data(), {g.data() + 1, 0.5f}, b.state(), {}, n);
    EXPECT_TRUE(same_bits(a.x, b.x));
    EXPECT_TRUE(same_bits(a.m, b.m));
    EXPECT_EQ(cleared.front(), g.front());
    EXPECT_EQ(cleared.back(), g.back());
    EXPECT_THAT(std::vector(cleared.begin() + 1, cleared.end() - 1), testing::Each(0.0f));
  }
}

TEST_P(Update, SumsSquaresInDouble) {
  for (const std::size_t n : {0u, 1u, 15u, 16u, 17u, 1000u}) {
    const Values values = random_values(n, 3, 1e3f);
    double want = 0;
    for (const float value : values) want += static_cast<double>(value) * value;
    const double sum = GetParam().sum_of_squares(values.data(), Wire::fp32, n);
    EXPECT_NEAR(sum, want, 1e-13 * want);
    EXPECT_EQ(sum, supported_kernels().back().sum_of_squares(values.data(), Wire::fp32, n))
        << "not the same bits";
  }
  Values large(100, std::numeric_limits<float>::max());
  EXPECT_TRUE(std::isfinite(GetParam().sum_of_squares(large.data(), Wire::fp32, large.size())));
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const std::size_t at : {0u, 50u, 99u}) {
      Values values(100, 1.0f);
      values[at] = bad;
      EXPECT_FALSE(std::isfinite(GetParam().sum_of_squares(values.data(), Wire::fp32, values.size())));
    }
  }
}

// Each in a process of its own, because the environment is read once.
TEST(BestKernels, AreThoseThatTheEnvironmentNames) {
  const auto best = [](const char* isa) {
    setenv("STARLING_ISA", isa, 1);
    return best_kernels().isa;
  };
  const auto all = supported_kernels();
  for (const Kernels& kernels : all) {
    const std::string isa(kernels.isa);
    EXPECT_EXIT(std::_Exit(best(isa.c_str()) == isa ? 0 : 1), testing::ExitedWithCode(0), "") << isa;
  }
  EXPECT_EXIT(std::_Exit(best("") == all.front().isa ? 0 : 1), testing::ExitedWithCode(0), "");
  const auto refused = [&] {
    try {
      best("avx1024");
    } catch (const UsageError& error) {
      std::fputs(error.what(), stderr);
      std::_Exit(2);
    }
  };
  EXPECT_EXIT(refused(), testing::ExitedWithCode(2),
              "STARLING_ISA=avx1024 is not an .*: allowed are .*" + std::string(all.back().isa));
}

}  // namespace
}  // namespace starling::kernels
