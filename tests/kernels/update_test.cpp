// The kernels against the same formulas as plain loops in double.
#include "starling/kernels/update.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "starling/optim/rules.h"

namespace starling::kernels {
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

// What a worker keeps.
struct Worker {
  explicit Worker(std::size_t n, std::uint32_t seed = 1)
      : x(random_values(n, seed)), wire(x), m(n, 0), v(n, 0), b(n, 0) {}
  RuleState state() { return {m.data(), v.data(), b.data()}; }
  Values x, wire, m, v, b;
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
  double x, wire, m = 0, v = 0, b = 0;

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

// Runs `steps` steps of a rule, with and without gradients, and of its reference, on sizes around the chunk's
// and the vectors' borders, with 0 to 5 neighbours.
template <class StepAt, class ReferenceStep>
void compare(StepAt step_at, ReferenceStep reference_step) {
  for (const std::size_t n : {1u, 3u, 17u, 511u, 512u, 513u, 1543u}) {
    for (int neighbours = 0; neighbours <= 5; ++neighbours) {
      SCOPED_TRACE("n = " + std::to_string(n) + ", neighbours = " + std::to_string(neighbours));
      Worker worker(n);
      std::vector<Reference> reference;
      for (const float x : worker.x) reference.push_back({.x = x, .wire = x});
      int t = 0;
      for (std::uint32_t round = 0; round < 20; ++round) {
        const bool has_gradient = round % 7 != 5;
        const Values g = random_values(n, 1000 + round);
        const Neighbours near(neighbours, n, 77 * round);
        if (has_gradient) ++t;
        const bool finite = update(step_at(std::max(t, 1)), near.mixes(worker.wire), worker.x.data(),
                                   has_gradient ? g.data() : nullptr, worker.state(), worker.wire.data(), n);
        ASSERT_TRUE(finite);
        ASSERT_TRUE(same_bits(worker.x, worker.wire));
        for (std::size_t i = 0; i < n; ++i) {
          Reference& r = reference[i];
          const double mixed = near.mixed(r.x, r.wire, i);
          if (has_gradient) {
            reference_step(r, mixed, g[i], t);
          } else {
            r.x = mixed;
          }
          r.wire = r.x;
        }
      }
      expect_near(worker.x, reference, &Reference::x, "x");
      expect_near(worker.m, reference, &Reference::m, "m");
      expect_near(worker.v, reference, &Reference::v, "v");
      expect_near(worker.b, reference, &Reference::b, "b");
    }
  }
}

TEST(Update, SgdIsTheFormula) {
  const SGD o{.lr = 0.05, .weight_decay = 0.03};
  compare([&](int t) { return Step(SgdStep::at(o, t)); },
          [&](Reference& r, double mixed, double g, int) { r.sgd(o, mixed, g); });
}

TEST(Update, SgdWithMomentumIsTheFormula) {
  for (const bool nesterov : {false, true}) {
    const SGD o{.lr = 0.05, .momentum = 0.9, .nesterov = nesterov, .weight_decay = 0.03};
    compare([&](int t) { return Step(MomentumStep::at(o, t)); },
            [&](Reference& r, double mixed, double g, int) { r.sgd(o, mixed, g); });
  }
}

TEST(Update, AdamIsTheFormula) {
  const Adam o{.lr = 0.01, .betas = {0.9, 0.98}, .weight_decay = 0.1};
  compare([&](int t) { return Step(AdamStep::at(o, false, t)); },
          [&](Reference& r, double mixed, double g, int t) { r.adam(o, false, mixed, g, t); });
}

TEST(Update, AdamWIsTheFormula) {
  const AdamW o{.lr = 0.01, .betas = {0.9, 0.98}, .weight_decay = 0.1};
  compare([&](int t) { return Step(AdamStep::at(o, true, t)); },
          [&](Reference& r, double mixed, double g, int t) { r.adam(o, true, mixed, g, t); });
}

TEST(Update, AccumAdamIsTheFormula) {
  for (const int window : {1, 3, 4}) {
    const AccumAdam o{.lr = 0.01, .betas = {0.9, 0.98}, .weight_decay = 0.1, .window = window};
    compare([&](int t) { return accum_adam_step<Step>(o, false, t); },
            [&](Reference& r, double mixed, double g, int t) { r.accum_adam(o, false, mixed, g, t); });
  }
}

TEST(Update, AccumAdamWIsTheFormula) {
  const AccumAdamW o{.lr = 0.01, .betas = {0.9, 0.98}, .weight_decay = 0.1, .window = 3};
  compare([&](int t) { return accum_adam_step<Step>(o, true, t); },
          [&](Reference& r, double mixed, double g, int t) { r.accum_adam(o, true, mixed, g, t); });
}

// A large eps tells eps outside the root (as here) from eps inside it.
TEST(Update, EpsStandsOutsideTheRoot) {
  const Adam o{.lr = 1, .betas = {0.9, 0.999}, .eps = 0.5};
  Values x{0}, m{0}, v{0};
  const Values g{2};
  update(AdamStep::at(o, false, 1), {}, x.data(), g.data(), {m.data(), v.data(), nullptr}, nullptr, 1);
  EXPECT_FLOAT_EQ(x[0], -2.0f / (2.0f + 0.5f));
}

TEST(Update, AccumAdamWithWindowOneIsAdamToTheBit) {
  const std::size_t n = 700;
  for (const bool decoupled : {false, true}) {
    const Adam adam{.lr = 0.01, .betas = {0.9, 0.98}, .weight_decay = 0.1};
    const AccumAdam accum{.lr = 0.01, .betas = {0.9, 0.98}, .weight_decay = 0.1, .window = 1};
    Worker a(n), b(n);
    for (int t = 1; t <= 50; ++t) {
      const Values g = random_values(n, static_cast<std::uint32_t>(t));
      const Neighbours near(2, n, 9);
      update(AdamStep::at(adam, decoupled, t), near.mixes(a.wire), a.x.data(), g.data(), a.state(),
             a.wire.data(), n);
      update(accum_adam_step<Step>(accum, decoupled, t), near.mixes(b.wire), b.x.data(), g.data(), b.state(),
             b.wire.data(), n);
    }
    EXPECT_TRUE(same_bits(a.x, b.x));
    EXPECT_TRUE(same_bits(a.m, b.m));
    EXPECT_TRUE(same_bits(a.v, b.v));
    EXPECT_THAT(b.b, testing::Each(0.0f));
  }
}

TEST(Update, AccumAdamMovesItsMomentsAtWindowBordersOnly) {
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

TEST(Update, WithoutAGradientItOnlyMixes) {
  const std::size_t n = 100;
  const AdamW o{.lr = 0.1, .weight_decay = 0.5};
  Worker worker(n);
  worker.m = worker.v = worker.b = random_values(n, 3);
  const Worker before = worker;
  const Neighbours near(3, n, 5);
  update(AdamStep::at(o, true, 1), near.mixes(worker.wire), worker.x.data(), nullptr, worker.state(),
         worker.wire.data(), n);
  for (std::size_t i = 0; i < n; ++i) {
    EXPECT_NEAR(worker.x[i], near.mixed(before.x[i], before.wire[i], i), 1e-6);
  }
  EXPECT_TRUE(same_bits(worker.m, before.m));
  EXPECT_TRUE(same_bits(worker.v, before.v));
  EXPECT_TRUE(same_bits(worker.b, before.b));

  Worker alone(n);
  update(AdamStep::at(o, true, 1), {}, alone.x.data(), nullptr, alone.state(), nullptr, n);
  EXPECT_TRUE(same_bits(alone.x, before.x));
}

TEST(Update, TheWireMayLieWhereMineLies) {
  const std::size_t n = 1500;
  const Adam o{.lr = 0.01};
  const Values g = random_values(n, 4);
  const Neighbours near(4, n, 5);
  Worker apart(n), aliased(n);
  const Values mine = random_values(n, 6);  // not equal to x: the parameters were touched between steps
  aliased.wire = mine;
  update(AdamStep::at(o, false, 1), near.mixes(mine), apart.x.data(), g.data(), apart.state(),
         apart.wire.data(), n);
  update(AdamStep::at(o, false, 1), near.mixes(aliased.wire), aliased.x.data(), g.data(), aliased.state(),
         aliased.wire.data(), n);
  EXPECT_TRUE(same_bits(apart.x, aliased.x));
  EXPECT_TRUE(same_bits(apart.wire, aliased.wire));
}

TEST(Update, SaysWhetherAllIsFinite) {
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

// What mixing adds to one worker, it takes from the other: to the bit, for any weight. At x = 0 the step
// shows what it adds unrounded.
TEST(Update, DeltasOfAnEdgeSumToZero) {
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

}  // namespace
}  // namespace starling::kernels
