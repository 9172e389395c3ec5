// The average model under every scheme of the table: what is kept stays, and what is not finite is
// left out.
#include "starling/optim/consensus.h"

#include "tests/optim/every_scheme.h"

namespace starling {
namespace {

using at::Tensor;
using testing::HasSubstr;

class ConsensusOf : public EveryScheme {
 protected:
  // Steps with gradients of this size, each time another one.
  static void train(Optimizer& optimizer, const Tensor& p, int i, int steps, double size) {
    for (int t = 0; t < steps; ++t) {
      p.mutable_grad() = at::full_like(p, size * std::sin(i + 3.0 * t));
      optimizer.step();
    }
    optimizer.wait_for_all();
  }
};

TEST_P(ConsensusOf, WhatIsKeptIsWhereTheNextStepStarts) {
  flock(kMany, [&](int i, World& world) {
    const Tensor p = parameter({5000});
    Optimizer optimizer({p}, SGD{.lr = 1}, options(), world);
    train(optimizer, p, i, 6, 1);
    for (int turn = 0; turn < 3; ++turn) {
      double kept = 0;
      {
        Consensus average(optimizer);
        average.keep();
        kept = p[0].item<double>();
      }
      train(optimizer, p, i, 2, 0);
      EXPECT_LT(optimizer.consensus_distance(), 1e-6);
      EXPECT_NEAR(p[0].item<double>(), kept, 1e-5);
    }
    optimizer.wait_for_all();
  });
}

TEST_P(ConsensusOf, WhatAllHaveSetIsWhereTheyBeginAgain) {
  flock(kMany, [&](int i, World& world) {
    const Tensor p = parameter({5000});
    Optimizer optimizer({p}, SGD{.lr = 1}, options(), world);
    {
      const c10::AutoGradMode no_gradient(false);
      p.fill_(1000.0 * i);
    }
    train(optimizer, p, i, 3, 0.1);
    {
      const c10::AutoGradMode no_gradient(false);
      p.fill_(1);
    }
    optimizer.begin_again();
    train(optimizer, p, i, 3, 0);
    EXPECT_TRUE(at::allclose(p, at::full_like(p, 1))) << p[0];
  });
}

TEST_P(ConsensusOf, AWorkerThatIsNotFiniteIsLeftOut) {
  flock(kMany, [&](int i, World& world) {
    LogLines warned;
    world.log = warned.log();
    const Tensor p = parameter({5000});
    Optimizer optimizer({p}, SGD{.lr = 1}, options(), world);
    {
      const c10::AutoGradMode no_gradient(false);
      p.fill_(i == 2 ? std::numeric_limits<double>::quiet_NaN() : 2.0 + i);
    }
    optimizer.begin_again();
    {
      const Consensus average(optimizer);
      EXPECT_EQ(average.workers(), 3);
      EXPECT_TRUE(at::allclose(p, at::full_like(p, (2.0 + 3 + 5) / 3))) << p[0];
      EXPECT_NEAR(average.distance(), std::sqrt((16.0 + 1 + 25) / 9 / 3 * 1), 1e-3);
    }
    EXPECT_EQ(warned.text().find("are not finite") != std::string::npos, i == 2) << warned.text();
    {
      const c10::AutoGradMode no_gradient(false);
      p.fill_(std::numeric_limits<double>::infinity());
    }
    EXPECT_THAT(refusal<Error>([&] { const Consensus none(optimizer); }),
                HasSubstr("no worker's parameters"));
  });
}

STARLING_EVERY_SCHEME(ConsensusOf);

}  // namespace
}  // namespace starling
