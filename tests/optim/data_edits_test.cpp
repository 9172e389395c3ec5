// The debug log names parameters that were edited past torch's version counter.
#include <cstdlib>

#include "starling/optim/consensus.h"
#include "tests/optim/flock.h"

namespace starling {
namespace {

TEST(DataEdits, AreNamedByTheDebugLog) {
  for (const bool debug : {true, false}) {
    debug ? setenv("STARLING_LOG", "debug", 1) : unsetenv("STARLING_LOG");
    flock(2, [&](int, World& world) {
      LogLines said;
      world.log = said.log();
      const std::vector<at::Tensor> both{at::full({8}, 1.0).requires_grad_(),
                                         at::full({4}, 2.0).requires_grad_()};
      Optimizer optimizer(both, SGD{.lr = 0.1}, {}, world);
      const auto step = [&] {
        for (const at::Tensor& p : both) p.mutable_grad() = at::ones_like(p);
        optimizer.step();
      };
      step(), step();
      {
        const c10::AutoGradMode no_gradient(false);
        both[0].add_(1);
        both[1].clamp_(0, 1);
      }
      step();
      {
        const Consensus average(optimizer);
      }
      step();
      Consensus(optimizer).keep();
      step();
      EXPECT_THAT(said.all(), testing::IsEmpty());
      both[1].data().mul_(2);
      step();
      EXPECT_EQ(said.all().size(), debug ? 1U : 0U);
      const std::string named = debug ? "parameter 1 of group 0 was changed since the last step, but" : "";
      EXPECT_THAT(said.text(), testing::HasSubstr(named));
    });
  }
  unsetenv("STARLING_LOG");
}

}  // namespace
}  // namespace starling
