// The kernels of every instruction set that runs here, against the same formulas as plain loops in
// double, and against each other to the bit.
#include "starling/kernels/update.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "starling/core/error.h"
#include "starling/optim/rules.h"

namespace starling::kernels {

void PrintTo(const Kernels& kernels, std::ostream* out) { *out << kernels.isa; }  // for GoogleTest

namespace {

using Values = std::vector<float>;
using Doubles = std::vector<double>;

Values random_values(std::size_t n, std::uint32_t seed, float scale = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, scale);
  Values values(n);
  for (float& value : values) value = normal(generator);
  return values;
}

bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The data of a worker.
struct Worker {
  explicit Worker(std::size_t n, std::uint32_t seed = 1)
      : x(random_values(n, seed)), outgoing(x), m(n, 0), v(n, 0), b(n, 0) {}
  RuleState state() { return {m.data(), v.data(), b.data()}; }
  Values x, outgoing, m, v, b;
};

// The neighbours of one round: q_j and W_ij.
struct Neighbours {
  Neighbours(int count, std::size_t n, std::uint32_t seed) {
    for (int j = 0; j < count; ++j) {
      q.push_back(random_values(n, seed + static_cast<std::uint32_t>(j)));
      w.push_back(static_cast<float>(0.7 / (count + j)));
    }
  }
  std::vector<Mix> mixes(const Values& mine) const {
    std::vector<Mix> mixes;
    for (std::size_t j = 0; j < q.size(); ++j) mixes.push_back({w[j], q[j].data(), mine.data()});
    return mixes;
  }
  double mixed(double x, double mine, std::size_t i) const {
    double sum = x;
    for (std::size_t j = 0; j < q.size(); ++j) sum += w[j] * (q[j][i] - mine);
    return sum;
  }
  std::vector<Values> q;
  std::vector<float> w;
};

// The papers' formulas, one element at a time, in double.
struct Reference {
  double x, outgoing, m = 0, v = 0, b = 0;

  void sgd(const SGD& o, double mixed, double g) {
    const double d = g + o.weight_decay * x;
    double u = d;
    if (o.momentum != 0) {
      m = o.momentum * m + d;
      u = o.nesterov ? d + o.momentum * m : m;
    }
    x = mixed - o.lr * u;
  }
  template <class O>
  void adam(const O& o, bool decoupled, double mixed, double g, int t) {
    if (decoupled) {
      mixed *= 1 - o.lr * o.weight_decay;
    } else {
      g += o.weight_decay * x;
    }
    m = o.betas[0] * m + (1 - o.betas[0]) * g;
    v = o.betas[1] * v + (1 - o.betas[1]) * g * g;
    const double m_hat = m / (1 - std::pow(o.betas[0], t));
    const double v_hat = v / (1 - std::pow(o.betas[1], t));
    x = mixed - o.lr * m_hat / (std::sqrt(v_hat) + o.eps);
  }
  template <class O>
  void accum_adam(const O& o, bool decoupled, double mixed, double g, int t) {
    if (decoupled) {
      mixed *= 1 - o.lr * o.weight_decay;
    } else {
      g += o.weight_decay * x;
    }
    const int s = o.window;
    const double k = std::ceil(static_cast<double>(t) / s);
    const double m_now = o.betas[0] * m + (1 - o.betas[0]) * g;
    const double v_now = o.betas[1] * v + (1 - o.betas[1]) * g * g;
    const double m_hat = m_now / (1 - std::pow(o.betas[0], k));
    const double v_hat = v_now / (1 - std::pow(o.betas[1], k));
    x = mixed - o.lr * m_hat / (std::sqrt(v_hat) + o.eps);
    b += g / s;
    if (t % s == 0) {
      m = o.betas[0] * m + (1 - o.betas[0]) * b;
      v = o.betas[1] * v + (1 - o.betas[1]) * b * b;
      b = 0;
    }
  }
};

void expect_near(const Values& got, const std::vector<Reference>& want, double Reference::* member,
                 const std::string& what) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double expected = want[i].*member;
    // 40 steps of a few roundings each, 6e-8 relative to values of order 1.
    ASSERT_NEAR(got[i], expected, 2e-6 * std::max(1.0, std::abs(expected))) << what << " at " << i;
  }
}

class Update : public testing::TestWithParam<Kernels> {
 protected:
  bool update(const Step& step, std::span<const Mix> mixes, float* x, const float* g, RuleState state,
              float* outgoing, std::size_t n) const {
    return GetParam().update(step, mixes, x, {g}, state, {outgoing}, n);
  }

  // Runs 20 steps of a rule, with and without gradients, and of its reference. Sizes are around the
  // chunk's and the vectors' borders, with 0 to 5 neighbours.
  template <class StepAt, class ReferenceStep>
  void compare(StepAt step_at, ReferenceStep reference_step) {
    for (const std::size_t n : {1u, 3u, 17u, 511u, 512u, 513u, 1543u}) {
      for (int neighbours = 0; neighbours <= 5; ++neighbours) {
        SCOPED_TRACE("n = " + std::to_string(n) + ", neighbours = " + std::to_string(neighbours));
        Worker worker(n);
        std::vector<Reference> reference;
        for (const float x : worker.x) reference.push_back({.x = x, .outgoing = x});
        int t = 0;
        for (std::uint32_t round = 0; round < 20; ++round) {
          const bool has_gradient = round % 7 != 5;
          const Values g = random_values(n, 1000 + round);
          const Neighbours near(neighbours, n, 77 * round);
          if (has_gradient) ++t;
          const bool finite =
              update(step_at(std::max(t, 1)), near.mixes(worker.outgoing), worker.x.data(),
                     has_gradient ? g.data() : nullptr, worker.state(), worker.outgoing.data(), n);
          ASSERT_TRUE(finite);
          ASSERT_TRUE(same_bits(worker.x, worker.outgoing));
          for (std::size_t i = 0; i < n; ++i) {
            Reference& r = reference[i];
            const double mixed = near.mixed(r.x, r.outgoing, i);
            if (has_gradient) {
              reference_step(r, mixed, g[i], t);
            } else {
              r.x = mixed;
            }
            r.outgoing = r.x;
          }
        }
        expect_near(worker.x, reference, &Reference::x, "x");
        expect_near(worker.m, reference, &Reference::m, "m");
        expect_near(worker.v, reference, &Reference::v, "v");
        expect_near(worker.b, reference, &Reference::b, "b");
      }
    }
  }
};

std::string isa_of(const testing::TestParamInfo<Kernels>& info) { return std::string(info.param.isa); }
INSTANTIATE_TEST_SUITE_P(Isa, Update,
                         testing::ValuesIn(supported_kernels().begin(), supported_kernels().end()), isa_of);

TEST_P(Update, SgdIsTheFormula) {
  const SGD o{.lr = 0.05, .weight_decay = 0.03};
  compare([&](int t) { return Step(SgdStep::at(o, t)); },
          [&](Reference& r, double mixed, double g, int) { r.sgd(o, mixed, g); });
}

TEST_P(Update, SgdWithMomentumIsTheFormula) {
  for (const bool nesterov : {false, true}) {
    const SGD o{.lr = 0.05, .momentum = 0.9, .nesterov = nesterov, .weight_decay = 0.03};
    compare([&](int t) { return Step(MomentumStep::at(o, t)); },
            [&](Reference& r, double mixed, double g, int) { r.sgd(o, mixed, g); });
  }
}

TEST_P(Update, AdamIsTheFormula) {
  const Adam o{.lr = 0.01, .betas = {0.9, 0.98}, .weight_decay = 0.1};
  compare([&](int t) { return Step(AdamStep::at(o, false, t)); },
          [&](Reference& r, double mixed, double g, int t) { r.adam(o, false, mixed, g, t); });
}

TEST_P(Update, AdamWIsTheFormula) {
  const AdamW o{.lr = 0.01, .betas = {0.9, 0.98}, .weight_decay = 0.1};
  compare([&](int t) { return Step(AdamStep::at(o, true, t)); },
          [&](Reference& r, double mixed, double g, int t) { r.adam(o, true, mixed, g, t); });
}

TEST_P(Update, AccumAdamIsTheFormula) {
  for (const int window : {1, 3, 4}) {
    const AccumAdam o{.lr = 0.01, .betas = {0.9, 0.98}, .weight_decay = 0.1, .window = window};
    compare([&](int t) { return accum_adam_step<Step>(o, false, t); },
            [&](Reference& r, double mixed, double g, int t) { r.accum_adam(o, false, mixed, g, t); });
  }
}

TEST_P(Update, AccumAdamWIsTheFormula) {
  const AccumAdamW o{.lr = 0.01, .betas = {0.9, 0.98}, .weight_decay = 0.1, .window = 3};
  compare([&](int t) { return accum_adam_step<Step>(o, true, t); },
          [&](Reference& r, double mixed, double g, int t) { r.accum_adam(o, true, mixed, g, t); });
}

// A large eps shows whether eps is outside the root (as here) or inside it.
TEST_P(Update, EpsStandsOutsideTheRoot) {
  const Adam o{.lr = 1, .betas = {0.9, 0.999}, .eps = 0.5};
  Values x{0}, m{0}, v{0};
  const Values g{2};
  update(AdamStep::at(o, false, 1), {}, x.data(), g.data(), {m.data(), v.data(), nullptr}, nullptr, 1);
  EXPECT_FLOAT_EQ(x[0], -2.0f / (2.0f + 0.5f));
}

TEST_P(Update, AccumAdamWithWindowOneIsAdamToTheBit) {
  const std::size_t n = 700;
  for (const bool decoupled : {false, true}) {
    const Adam adam{.lr = 0.01, .betas = {0.9, 0.98}, .weight_decay = 0.1};
    const AccumAdam accum{.lr = 0.01, .betas = {0.9, 0.98}, .weight_decay = 0.1, .window = 1};
    Worker a(n), b(n);
    for (int t = 1; t <= 50; ++t) {
      const Values g = random_values(n, static_cast<std::uint32_t>(t));
      const Neighbours near(2, n, 9);
      update(AdamStep::at(adam, decoupled, t), near.mixes(a.outgoing), a.x.data(), g.data(), a.state(),
             a.outgoing.data(), n);
      update(accum_adam_step<Step>(accum, decoupled, t), near.mixes(b.outgoing), b.x.data(), g.data(),
             b.state(), b.outgoing.data(), n);
    }
    EXPECT_TRUE(same_bits(a.x, b.x));
    EXPECT_TRUE(same_bits(a.m, b.m));
    EXPECT_TRUE(same_bits(a.v, b.v));
    EXPECT_THAT(b.b, testing::Each(0.0f));
  }
}

TEST_P(Update, AccumAdamMovesItsMomentsAtWindowBordersOnly) {
  const AccumAdam o{.lr = 0.01, .betas = {0.5, 0.75}, .window = 4};
  Values x{1}, M{0}, V{0}, b{0};
  const float gradients[] = {1, -3, 5, 7};
  for (int t = 1; t <= 4; ++t) {
    EXPECT_EQ(M[0], 0.0f);
    EXPECT_EQ(V[0], 0.0f);
    update(accum_adam_step<Step>(o, false, t), {}, x.data(), &gradients[t - 1],
           {M.data(), V.data(), b.data()}, nullptr, 1);
    if (t < 4) {
      EXPECT_NE(b[0], 0.0f);
    }
  }
  EXPECT_EQ(b[0], 0.0f);
  EXPECT_EQ(M[0], 0.5f * 2.5f);            // the mean is 2.5
  EXPECT_EQ(V[0], 0.25f * (2.5f * 2.5f));  // the square of the mean; the mean of the squares is 21
}

TEST_P(Update, WithoutAGradientItOnlyMixes) {
  const std::size_t n = 100;
  const AdamW o{.lr = 0.1, .weight_decay = 0.5};
  Worker worker(n);
  worker.m = worker.v = worker.b = random_values(n, 3);
  const Worker before = worker;
  const Neighbours near(3, n, 5);
  update(AdamStep::at(o, true, 1), near.mixes(worker.outgoing), worker.x.data(), nullptr, worker.state(),
         worker.outgoing.data(), n);
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
  update(AdamStep::at(o, false, 1), near.mixes(mine), separate.x.data(), g.data(), separate.state(),
         separate.outgoing.data(), n);
  update(AdamStep::at(o, false, 1), near.mixes(aliased.outgoing), aliased.x.data(), g.data(), aliased.state(),
         aliased.outgoing.data(), n);
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

// One step of every rule, with one way of splitting and sending.
struct Way {
  const Kernels* kernels;
  bool stream;
  std::size_t piece;   // parameters per call
  std::size_t offset;  // of the arrays from the beginning of a cache line, in floats
};

struct Result {
  Values x, outgoing, m, v, b;
  bool operator==(const Result& o) const {
    return same_bits(x, o.x) && same_bits(outgoing, o.outgoing) && same_bits(m, o.m) && same_bits(v, o.v) &&
           same_bits(b, o.b);
  }
};

Result run(const Way& way, const Step& step, int neighbours, std::size_t n) {
  constexpr float kUntouched = 12345;
  constexpr std::size_t kMargin = 32;
  const auto array =
      [&](const Values& values) {  // values[0] has the alignment way.offset, with room at both ends
        Values all(values.size() + 2 * kMargin, kUntouched);
        const std::size_t line = reinterpret_cast<std::uintptr_t>(all.data()) / sizeof(float) % 16;
        const std::size_t begin = (16 - line) % 16 + way.offset;
        std::copy(values.begin(), values.end(), all.begin() + static_cast<std::ptrdiff_t>(begin));
        return std::pair(std::move(all), begin);
      };
  auto [x, x0] = array(random_values(n, 1));
  auto [m, m0] = array(random_values(n, 2));
  auto [v, v0] = array(random_values(n, 3));
  auto [b, b0] = array(random_values(n, 4));
  auto [outgoing, outgoing0] = array(Values(n, 0.0f));
  for (float& value : v) value = std::abs(value);
  const auto [g, g0] = array(random_values(n, 5));
  const Values mine = random_values(n, 6);
  const Neighbours near(neighbours, n, 7);
  for (std::size_t at = 0; at < n; at += way.piece) {
    std::vector<Mix> mixes = near.mixes(mine);
    for (Mix& mix : mixes) {
      mix.theirs = static_cast<const float*>(mix.theirs.values) + at;
      mix.mine = static_cast<const float*>(mix.mine.values) + at;
    }
    way.kernels->update(step, mixes, &x[x0 + at], {&g[g0 + at], 0.3f},
                        {&m[m0 + at], &v[v0 + at], &b[b0 + at]}, {&outgoing[outgoing0 + at], way.stream},
                        std::min(way.piece, n - at));
  }
  for (const auto& [all, begin] : {std::pair(&x, x0), {&outgoing, outgoing0}, {&m, m0}, {&v, v0}, {&b, b0}}) {
    for (std::size_t i = 0; i < all->size(); ++i) {
      if (i >= begin && i < begin + n) continue;
      EXPECT_EQ((*all)[i], kUntouched) << "written outside, at " << i << " of " << n;
    }
  }
  const auto taken = [n](const Values& all, std::size_t begin) {
    return Values(all.begin() + static_cast<std::ptrdiff_t>(begin),
                  all.begin() + static_cast<std::ptrdiff_t>(begin + n));
  };
  return {taken(x, x0), taken(outgoing, outgoing0), taken(m, m0), taken(v, v0), taken(b, b0)};
}

TEST_P(Update, TheSameBitsWithEveryInstructionSetHoweverItIsSplitAndSent) {
  const AccumAdamW o{.lr = 0.01, .betas = {0.9, 0.98}, .weight_decay = 0.1, .window = 3};
  const Step steps[] = {SgdStep::at(SGD{.lr = 0.05, .weight_decay = 0.03}, 1),
                        MomentumStep::at(SGD{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.03}, 1),
                        AdamStep::at(o, false, 4),
                        AdamStep::at(o, true, 4),
                        accum_adam_step<Step>(o, true, 2),
                        accum_adam_step<Step>(o, false, 3)};
  const Kernels& reference = supported_kernels().back();  // the compiler's own code
  for (const Step& step : steps) {
    for (const std::size_t n : {1u, 15u, 64u, 67u, 200u, 1031u}) {
      for (const int neighbours : {0, 1, 4, 6}) {
        const Result whole = run({&reference, false, n, 0}, step, neighbours, n);
        ASSERT_TRUE(same_bits(whole.x, whole.outgoing));
        for (const bool stream : {false, true}) {
          for (const std::size_t piece : {n, std::size_t{37}, std::size_t{128}}) {
            for (const std::size_t offset : {0u, 1u, 4u, 15u}) {
              ASSERT_EQ(run({&GetParam(), stream, piece, offset}, step, neighbours, n), whole)
                  << "rule " << step.index() << ", n = " << n << ", neighbours = " << neighbours
                  << ", stream = " << stream << ", piece = " << piece << ", offset = " << offset;
            }
          }
        }
      }
    }
  }
}

// One number for all bits of all rules: the same on x86 and ARM.
TEST_P(Update, TheSameBitsOnEveryMachine) {
  const std::size_t n = 257;
  auto values = [state = 1u]() mutable {  // no library's distribution decides
    Values all(n);
    for (float& value : all) {
      state = state * 1664525u + 1013904223u;
      value = static_cast<float>(static_cast<std::int32_t>(state) / 4096) * 0x1p-18f;
    }
    return all;
  };
  // Coefficients that are exact in binary, because pow() and division before the kernels are not
  // tested here.
  const AdamStep adam{.beta1 = 0.875f,
                      .gain1 = 0.125f,
                      .beta2 = 0.96875f,
                      .gain2 = 0.03125f,
                      .l2 = 0.0625f,
                      .keep = 0.99609375f,
                      .lr_u = {.lr_hat = 0.01171875f, .root = 1.0625f, .eps = 0x1p-20f}};
  const Step rules[] = {SgdStep{.lr = 0.046875f, .wd = 0.0625f},
                        MomentumStep{.lr = 0.046875f, .mu = 0.875f, .wd = 0.0625f, .nesterov = true}, adam,
                        AccumAdamStep<false>{adam, 0.34375f}, AccumAdamStep<true>{adam, 0.34375f}};
  Values x = values(), m = values(), v = values(), b = values(), outgoing(n);
  for (float& value : v) value = std::abs(value);
  for (int t = 0; t < 10; ++t) {
    for (const Step& rule : rules) {
      const Values g = values(), theirs = values(), mine = values();
      const Mix mix{0.4375f, theirs.data(), mine.data()};
      GetParam().update(rule, {&mix, 1}, x.data(), {g.data(), 0.75f}, {m.data(), v.data(), b.data()},
                        {outgoing.data()}, n);
    }
  }
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const Values* all : {&x, &m, &v, &b, &outgoing}) {
    for (const float value : *all) hash = (hash ^ std::bit_cast<std::uint32_t>(value)) * 1099511628211u;
  }
  const double squares = GetParam().sum_of_squares(x.data(), Wire::fp32, n);
  hash = (hash ^ std::bit_cast<std::uint64_t>(squares)) * 1099511628211u;
  EXPECT_EQ(hash, 16566543008082432276u) << "squares " << squares;
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
