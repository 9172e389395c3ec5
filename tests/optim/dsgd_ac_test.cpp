// DSGD-AC's factors. Its equation is in scheme_equations_test.cpp.
#include "tests/optim/seat.h"

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

// It has not seen the first one. With another factor than its neighbours it would move the sum of
// all parameters.
TEST(DsgdAc, ANewcomerTakesTheOthersLargestLearningRate) {
  std::atomic<std::uint64_t> last = ~std::uint64_t{0};  // step; unknown before the worker is back
  flock(3, [&](int i, World& world) {
    const at::Tensor x = parameter({4});
    const auto begin = [&] {
      return std::make_unique<Optimizer>(std::vector<at::Tensor>{x}, SGD{.lr = 1},
                                         Options{.topology = "ring", .scheme = "dsgd-ac"}, seat_of(world));
    };
    auto optimizer = begin();
    optimizer->step();
    optimizer->param_groups()[0].options().set_lr(0.1);
    optimizer->step();
    if (i == 2) {
      optimizer.reset();
      optimizer = begin();
      EXPECT_EQ(optimizer->param_groups()[0].options().get_lr(), 0.1);
      last = optimizer->steps() + 3;
    }
    while (optimizer->steps() < last) optimizer->step();
    nobody_leaves_yet(*optimizer);
    EXPECT_EQ(optimizer->state().tensors.at("largest_lr").item<double>(), 1) << "worker " << i;
    nobody_leaves_yet(*optimizer);
  });
}

}  // namespace
}  // namespace starling
