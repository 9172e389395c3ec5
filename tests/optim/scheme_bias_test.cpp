// The end of a scheme with a constant learning rate, if the workers' losses differ:
//
//   f_i(x) = a_i / 2 (x - c_i)^2       the optimum of the sum: Sum_i a_i c_i / Sum_i a_i
//
// An exact scheme ends there. The others end beside it, where mixing and the workers' own gradients
// balance.
#include "tests/optim/every_scheme.h"

namespace starling {
namespace {

using namespace std::chrono_literals;
using at::Tensor;

class SchemeBias : public EveryScheme {};

TEST_P(SchemeBias, OnSkewedDataIsZeroForExactSchemes) {
  if (in_pairs()) GTEST_SKIP() << "push_pull_test.cpp, virtual_test.cpp: their times are random";
  const auto a = [](int i) { return 0.5 + 0.4 * i; };
  const auto c = [](int i) { return i * i - 2.0; };
  double optimum = 0, all = 0;
  for (int i = 0; i < kMany; ++i) optimum += a(i) * c(i), all += a(i);
  optimum /= all;
  virtual_flock(kMany, [&](int i, World& world, VirtualTime& time) {
    const Tensor x = parameter({3});
    Optimizer optimizer({x}, SGD{.lr = 0.05}, options(), world);
    for (int t = 0; t < 1500; ++t) {
      time.sleep(10ms);
      optimizer.zero_grad();
      x.mutable_grad() = a(i) * (x.detach() - c(i));
      optimizer.step();
    }
    const double off = std::abs(x[0].item<double>() - optimum);
    if (info().traits.exact) {
      EXPECT_LT(off, 1e-5) << "worker " << i;
    } else {
      EXPECT_GT(off, 1e-3) << "worker " << i << ": it is exact, and its traits do not say so";
      if (mixes()) {
        EXPECT_LT(off, 1) << "worker " << i;
      }
    }
    nobody_leaves_yet(optimizer);
  });
}

STARLING_EVERY_SCHEME(SchemeBias);

}  // namespace
}  // namespace starling
