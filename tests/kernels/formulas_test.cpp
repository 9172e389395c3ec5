// The kernels of every instruction set that runs here, against the papers' formulas as plain loops
// in double.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "tests/kernels/update.h"
#include "tests/optim/plain.h"

namespace starling::kernels {
namespace {

// The papers' formulas, one element at a time, in double.
struct Reference : Plain {
  double x, outgoing;

  void sgd(const SGD& o, double mixed, double g) {
    const double d = g + o.weight_decay * x;
    double u = d;
    if (o.momentum != 0) {
      m = o.momentum * m + d;
      u = o.nesterov ? d + o.momentum * m : m;
    }
    x = mixed - o.lr * u;
  }
  // Adam has windows of one step.
  template <class O>
  void adam(const O& o, int window, bool decoupled, double mixed, double g) {
    if (decoupled) {
      mixed *= 1 - o.lr * o.weight_decay;
    } else {
      g += o.weight_decay * x;
    }
    x = mixed - o.lr * direction(g, {.betas = o.betas, .eps = o.eps, .window = window});
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

// Runs 20 steps of a rule, with and without gradients, and of its reference. Sizes are around the
// chunk's and the vectors' borders, with 0 to 5 neighbours.
template <class StepAt, class ReferenceStep>
void compare(const Kernels& kernels, StepAt step_at, ReferenceStep reference_step) {
  for (const std::size_t n : {1u, 3u, 17u, 511u, 512u, 513u, 1543u}) {
    for (int neighbours = 0; neighbours <= 5; ++neighbours) {
      SCOPED_TRACE("n = " + std::to_string(n) + ", neighbours = " + std::to_string(neighbours));
      Worker worker(n);
      std::vector<Reference> reference;
      for (const float x : worker.x) reference.push_back({{}, x, x});
      int t = 0;
      for (std::uint32_t round = 0; round < 20; ++round) {
        const bool has_gradient = round % 7 != 5;
        const Values g = random_values(n, 1000 + round);
        const Neighbours near(neighbours, n, 77 * round);
        if (has_gradient) ++t;
        ASSERT_TRUE(kernels.update(step_at(std::max(t, 1)), near.mixes(worker.outgoing), worker.x.data(),
                                   {has_gradient ? g.data() : nullptr}, worker.state(),
                                   {worker.outgoing.data()}, n));
        ASSERT_TRUE(same_bits(worker.x, worker.outgoing));
        for (std::size_t i = 0; i < n; ++i) {
          Reference& r = reference[i];
          const double mixed = near.mixed(r.x, r.outgoing, i);
          if (has_gradient) {
            reference_step(r, mixed, g[i]);
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

TEST_P(Update, SgdIsTheFormula) {
  const SGD o{.lr = 0.05, .weight_decay = 0.03};
  compare(
      GetParam(), [&](int t) { return Step(SgdStep::at(o, t)); },
      [&](Reference& r, double mixed, double g) { r.sgd(o, mixed, g); });
}

TEST_P(Update, SgdWithMomentumIsTheFormula) {
  for (const bool nesterov : {false, true}) {
    const SGD o{.lr = 0.05, .momentum = 0.9, .nesterov = nesterov, .weight_decay = 0.03};
    compare(
        GetParam(), [&](int t) { return Step(MomentumStep::at(o, t)); },
        [&](Reference& r, double mixed, double g) { r.sgd(o, mixed, g); });
  }
}

TEST_P(Update, AdamIsTheFormula) {
  const Adam o{.lr = 0.01, .betas = {0.9, 0.98}, .weight_decay = 0.1};
  compare(
      GetParam(), [&](int t) { return Step(AdamStep::at(o, false, t)); },
      [&](Reference& r, double mixed, double g) { r.adam(o, 1, false, mixed, g); });
}

TEST_P(Update, AdamWIsTheFormula) {
  const AdamW o{.lr = 0.01, .betas = {0.9, 0.98}, .weight_decay = 0.1};
  compare(
      GetParam(), [&](int t) { return Step(AdamStep::at(o, true, t)); },
      [&](Reference& r, double mixed, double g) { r.adam(o, 1, true, mixed, g); });
}

TEST_P(Update, AccumAdamIsTheFormula) {
  for (const int window : {1, 3, 4}) {
    const AccumAdam o{.lr = 0.01, .betas = {0.9, 0.98}, .weight_decay = 0.1, .window = window};
    compare(
        GetParam(), [&](int t) { return accum_adam_step<Step>(o, false, t); },
        [&](Reference& r, double mixed, double g) { r.adam(o, window, false, mixed, g); });
  }
}

TEST_P(Update, AccumAdamWIsTheFormula) {
  const AccumAdamW o{.lr = 0.01, .betas = {0.9, 0.98}, .weight_decay = 0.1, .window = 3};
  compare(
      GetParam(), [&](int t) { return accum_adam_step<Step>(o, true, t); },
      [&](Reference& r, double mixed, double g) { r.adam(o, 3, true, mixed, g); });
}

// A large eps shows whether eps is outside the root (as here) or inside it.
TEST_P(Update, MuonsStepIsTheFormula) {
  const Muon o{.lr = 0.01, .weight_decay = 0.1};
  compare(
      GetParam(), [&](int) { return RuleInfo<Muon>::matrix_step<Step>(o, 9, 4); },
      [&](Reference& r, double mixed, double along) {
        r.x = (1 - o.lr * o.weight_decay) * mixed - o.lr * 1.5 * along;
      });
}

TEST_P(Update, MuonsRestIsAdamW) {
  const Muon o{.lr = 0.02, .weight_decay = 0.1, .adamw_scale = 0.5, .betas = {0.9, 0.98}, .adamw_eps = 1e-7};
  const AdamW same{.lr = 0.01, .betas = {0.9, 0.98}, .eps = 1e-7, .weight_decay = 0.1};
  compare(
      GetParam(), [&](int t) { return RuleInfo<Muon>::step<Step>(o, t); },
      [&](Reference& r, double mixed, double g) { r.adam(same, 1, true, mixed, g); });
}

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
      update(AdamStep::at(adam, decoupled, t), near.mixes(a.outgoing), a, g.data());
      update(accum_adam_step<Step>(accum, decoupled, t), near.mixes(b.outgoing), b, g.data());
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

}  // namespace
}  // namespace starling::kernels
