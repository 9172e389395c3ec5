// Parameters in bf16 and fp16 with an fp32 master, by the kernels of every instruction set that
// runs here: the rules on a master in plain loops, to the bit. (formulas_test.cpp checks the rules'
// formulas.)
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "starling/optim/rules.h"
#include "tests/kernels/values.h"

namespace starling::kernels {
namespace {

using Halves = std::vector<std::uint16_t>;

constexpr Wire kFormats[] = {Wire::bf16, Wire::fp16};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::uint16_t rounded(float value, Wire format) {
  return format == Wire::bf16 ? to_bf16(value) : to_fp16(value);
}
float widened(std::uint16_t value, Wire format) {
  return format == Wire::bf16 ? from_bf16(value) : from_fp16(value);
}
Halves rounded(const Values& values, Wire format) {
  Halves halves;
  for (const float value : values) halves.push_back(rounded(value, format));
  return halves;
}

struct Worker {
  Worker(std::size_t n, Wire format)
      : format(format), p(rounded(random_values(n, 1), format)), x(n), m(n), v(n), b(n), outgoing(n) {}
  Parameters parameters() { return {p.data(), format, x.data()}; }
  RuleState state() { return {m.data(), v.data(), b.data()}; }
  Wire format;
  Halves p;
  Values x;  // the master: 0; the kernel makes it from the parameter
  Values m, v, b, outgoing;
};

// One element in float, with one neighbour: the kernel's computation in plain code.
template <class Rule>
void plain(const Rule& rule, Worker& w, std::size_t i, const Mix& mix, const std::uint16_t* g, float scale) {
  float& x = w.x[i];
  if (rounded(x, w.format) != w.p[i]) x = widened(w.p[i], w.format);
  const float theirs = static_cast<const float*>(mix.theirs.values)[i];
  const float mine = static_cast<const float*>(mix.mine.values)[i];
  const float Wx = x + mix.weight * (theirs - mine);
  if (g == nullptr) {
    x = Wx;
  } else if constexpr (Rule::kStates == 0) {
    x = rule(x, Wx, scale * widened(g[i], w.format));
  } else if constexpr (Rule::kStates == 1) {
    x = rule(x, Wx, scale * widened(g[i], w.format), w.m[i]);
  } else if constexpr (Rule::kStates == 2) {
    x = rule(x, Wx, scale * widened(g[i], w.format), w.m[i], w.v[i]);
  } else {
    x = rule(x, Wx, scale * widened(g[i], w.format), w.m[i], w.v[i], w.b[i]);
  }
  w.p[i] = rounded(x, w.format);
  w.outgoing[i] = x;
}

using StepAt = std::function<Step(int t)>;
const std::map<std::string, StepAt> kRules{
    {"SGD", [](int t) { return SgdStep::at(SGD{.lr = 0.05, .weight_decay = 0.03}, t); }},
    {"momentum",
     [](int t) { return MomentumStep::at(SGD{.lr = 0.05, .momentum = 0.9, .nesterov = true}, t); }},
    {"Adam", [](int t) { return AdamStep::at(Adam{.lr = 0.01, .weight_decay = 0.1}, false, t); }},
    {"AdamW", [](int t) { return AdamStep::at(AdamW{.lr = 0.01, .weight_decay = 0.1}, true, t); }},
    {"AccumAdam", [](int t) { return accum_adam_step<Step>(AccumAdam{.lr = 0.01, .window = 3}, false, t); }},
    {"AccumAdamW",
     [](int t) { return accum_adam_step<Step>(AccumAdamW{.lr = 0.01, .window = 4}, true, t); }}};

class Master : public testing::TestWithParam<Kernels> {};
STARLING_EVERY_ISA(Master);

// Split into pieces that begin anywhere, streamed or not. In step 9 another party changes
// parameters.
TEST_P(Master, FiftyStepsOfEveryRuleAreThoseOfAMasterInPlainLoops) {
  for (const auto& [name, step_at] : kRules) {
    for (const Wire format : kFormats) {
      for (const auto& [n, piece] : {std::pair{1U, 1U}, {67U, 67U}, {515U, 37U}, {1031U, 128U}}) {
        SCOPED_TRACE(name + " " + std::string(name_of(format)) + " " + std::to_string(n));
        Worker got(n, format), want(n, format);
        int t = 0;
        for (std::uint32_t round = 0; round < 50; ++round) {
          if (round == 9) {
            for (std::size_t i = 0; i < n; i += 3) got.p[i] = want.p[i] = rounded(0.5F, format);
          }
          const Values theirs = random_values(n, 1000 + round), mine = random_values(n, 2000 + round);
          const Halves g = rounded(random_values(n, 3000 + round), format);
          const bool has_gradient = round % 7 != 5;
          if (has_gradient) ++t;
          const Step step = step_at(std::max(t, 1));
          for (std::size_t at = 0; at < n; at += piece) {
            const Mix mix{0.3F, theirs.data() + at, mine.data() + at};
            EXPECT_TRUE(GetParam().update(
                step, {&mix, 1}, got.parameters().from(at), {has_gradient ? &g[at] : nullptr, 0.7F},
                {&got.m[at], &got.v[at], &got.b[at]}, {&got.outgoing[at], round % 2 == 0},
                std::min<std::size_t>(piece, n - at)));
          }
          const Mix mix{0.3F, theirs.data(), mine.data()};
          for (std::size_t i = 0; i < n; ++i) {
            std::visit(
                [&](const auto& rule) { plain(rule, want, i, mix, has_gradient ? g.data() : nullptr, 0.7F); },
                step);
          }
          ASSERT_TRUE(same_bits(got.p, want.p)) << round;
          ASSERT_TRUE(same_bits(got.x, want.x)) << round;
          ASSERT_TRUE(same_bits(got.outgoing, want.outgoing)) << round;
        }
        EXPECT_TRUE(same_bits(got.m, want.m));
        EXPECT_TRUE(same_bits(got.v, want.v));
        EXPECT_TRUE(same_bits(got.b, want.b));
        EXPECT_FALSE(same_bits(got.p, Worker(n, format).p));
      }
    }
  }
}

// One number for all bits: the same on x86 and ARM.
TEST_P(Master, TheSameBitsOnEveryMachine) {
  constexpr std::size_t kCount = 257;
  Numbers number;
  Hash hash;
  for (const Wire format : kFormats) {
    Worker w(0, format);
    w.x.resize(kCount), w.m.resize(kCount), w.outgoing.resize(kCount);
    for (std::size_t i = 0; i < kCount; ++i) w.p.push_back(rounded(number(), format));
    for (int t = 0; t < 10; ++t) {
      Halves g;
      Values theirs;
      for (std::size_t i = 0; i < kCount; ++i)
        g.push_back(rounded(number(), format)), theirs.push_back(number());
      const Values mine(kCount, 0.125F);
      const Mix mix{0.4375F, theirs.data(), mine.data()};
      GetParam().update(MomentumStep{.lr = 0.046875F, .mu = 0.875F, .wd = 0.0625F, .nesterov = true},
                        {&mix, 1}, w.parameters(), {g.data(), 0.75F}, w.state(), {w.outgoing.data()}, kCount);
    }
    for (const std::uint16_t p : w.p) hash.add(std::uint64_t{p});
    for (const Values* all : {&w.x, &w.m, &w.outgoing}) hash.add(*all);
    hash.add(std::bit_cast<std::uint64_t>(GetParam().sum_of_squares(w.p.data(), format, kCount)));
  }
  EXPECT_EQ(hash.value, 4983941727527096210U);
}

TEST_P(Master, KeepsWhatTheParameterCannotHold) {
  for (const Wire format : kFormats) {
    Worker w(100, format);
    w.p.assign(100, rounded(1, format));
    const Halves g(100, rounded(1, format));
    for (int t = 0; t < 1000; ++t)
      GetParam().update(SgdStep{.lr = 1e-4F, .wd = 0}, {}, w.parameters(), {g.data()}, {}, {}, 100);
    for (std::size_t i = 0; i < 100; ++i) {
      ASSERT_NEAR(w.x[i], 0.9F, 1e-4F);
      ASSERT_NEAR(widened(w.p[i], format), 0.9F, 2e-3F);
    }
  }
}

// A changed parameter is taken as a whole. The master of any other parameter keeps its value.
TEST_P(Master, TakesChangedParametersOnly) {
  for (const Wire format : kFormats) {
    for (const std::size_t n : {1U, 5U, 64U, 200U}) {
      Worker w(n, format);
      const Halves g = rounded(random_values(n, 7), format);
      const SgdStep step{.lr = 0.013F, .wd = 0};
      GetParam().update(step, {}, w.parameters(), {g.data()}, {}, {}, n);
      const Values x = w.x;
      const Halves p = w.p;
      w.p[n / 2] = rounded(-0.0F, format);
      w.p[n - 1] = static_cast<std::uint16_t>(p[n - 1] + 1U);  // its last bit
      const Halves changed = w.p;
      EXPECT_TRUE(GetParam().update(step, {}, w.parameters(), {}, {}, {w.outgoing.data()}, n));
      EXPECT_TRUE(same_bits(w.p, changed));
      EXPECT_TRUE(same_bits(w.outgoing, w.x));
      for (std::size_t i = 0; i < n; ++i) {
        const float want = w.p[i] == p[i] ? x[i] : widened(w.p[i], format);
        EXPECT_EQ(std::bit_cast<std::uint32_t>(w.x[i]), std::bit_cast<std::uint32_t>(want))
            << i << " of " << n;
      }
    }
  }
}

TEST_P(Master, SaysWhetherAllIsFinite) {
  for (const Wire format : kFormats) {
    for (const std::size_t n : {1U, 70U, 300U}) {
      for (const std::size_t at : {std::size_t{0}, n / 2, n - 1}) {
        const SgdStep step{.lr = 1, .wd = 0};
        for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
          Worker of_parameter(n, format);
          of_parameter.p[at] = rounded(bad, format);
          EXPECT_FALSE(GetParam().update(step, {}, of_parameter.parameters(), {}, {}, {}, n));
          Worker of_gradient(n, format);
          Halves g(n, rounded(0, format));
          EXPECT_TRUE(GetParam().update(step, {}, of_gradient.parameters(), {g.data()}, {}, {}, n));
          g[at] = rounded(bad, format);
          EXPECT_FALSE(GetParam().update(step, {}, of_gradient.parameters(), {g.data()}, {}, {}, n));
        }
        // The master is finite, the parameter beyond its format's range; also if nothing moves it
        // further.
        Worker w(n, format);
        w.p[at] = rounded(0, format);
        Values theirs(n, 0.0F);
        const Values mine(n, 0.0F);
        theirs[at] = format == Wire::bf16 ? 3.4e38F : 65520.0F;
        const Mix mix{1, theirs.data(), mine.data()};
        EXPECT_FALSE(GetParam().update(step, {&mix, 1}, w.parameters(), {}, {}, {}, n));
        EXPECT_EQ(w.x[at], theirs[at]);
        EXPECT_EQ(widened(w.p[at], format), kInfinity);
        EXPECT_FALSE(GetParam().update(step, {}, w.parameters(), {}, {}, {}, n));
      }
    }
  }
}

TEST_P(Master, SumsTheSquaresOfNarrowGradients) {
  for (const Wire format : kFormats) {
    for (const std::size_t n : {0U, 1U, 17U, 1000U}) {
      Halves halves = rounded(random_values(n, 3), format);
      Values values;
      for (const std::uint16_t half : halves) values.push_back(widened(half, format));
      EXPECT_EQ(GetParam().sum_of_squares(halves.data(), format, n),
                GetParam().sum_of_squares(values.data(), Wire::fp32, n));
      for (const std::size_t at : {std::size_t{0}, n / 2}) {
        if (n == 0) continue;
        halves[at] = rounded(kInfinity, format);
        EXPECT_FALSE(std::isfinite(GetParam().sum_of_squares(halves.data(), format, n)));
      }
    }
  }
}

}  // namespace
}  // namespace starling::kernels
