// DSGD-AC's factors. Its equation is in scheme_equations_test.cpp.
#include "tests/optim/flock.h"

namespace starling {
namespace {

// The rounds of a new connection begin at 1, whose factor of before was another one. After 100
// steps that factor is forgotten.
TEST(DsgdAc, ANewConnectionTakesTheFactorsOfItsOwnRounds) {
  for (const int steps : {1, 3, 100}) {
    flock(2, [&](int i, World& world) {
      const at::Tensor early = parameter({4}), late = parameter({4});
      Optimizer optimizer({early}, SGD{.lr = 1}, {.topology = "complete", .scheme = "dsgd-ac"}, world);
      for (int t = 0; t < steps; ++t) optimizer.step();
      early.detach().fill_(i);
      optimizer.param_groups()[0].options().set_lr(0.1);  // a tenth of the largest one
      optimizer.add_param_group({{late}});
      optimizer.step();
      EXPECT_TRUE(is_all(early, i == 0 ? 0.05 : 0.95)) << "after " << steps << " steps: " << early;
      nobody_leaves_yet(optimizer);
    });
  }
}

}  // namespace
}  // namespace starling
