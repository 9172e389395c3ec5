// Workers that leave and come back while the others train. Each scheme of the table.
#include "starling/optim/membership.h"

#include "tests/eventually.h"
#include "tests/optim/every_scheme.h"

namespace starling {
namespace {

using namespace std::chrono_literals;
using at::Tensor;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

World seat_of(const World& world) {
  World seat = world;
  seat.rejoin = true;
  seat.token = "sixteen bytes or more";
  seat.optimizers = std::make_shared<std::atomic<int>>(0);  // of a new process
  return seat;
}

class Rejoin : public EveryScheme {
 protected:
  static constexpr int kAverageEvery = 3;  // steps, by the count of the run

  // One life of a worker.
  struct Life {
    Life(const World& world, const Options& options)
        : optimizer(std::vector<Tensor>{x, y}, AdamW{.lr = 0.01}, options, world) {
      optimizer.add_to_state({{"mine", mine}});
    }
    // A step, and, as all do after the same steps, an operation of two averages.
    void step(int i) {
      x.mutable_grad() = x.detach() - centre(i, static_cast<int>(optimizer.steps()));
      y.mutable_grad() = y.detach() - i;
      optimizer.step();
      mine.fill_(static_cast<double>(optimizer.steps()));
      if (optimizer.steps() % kAverageEvery != 0) return;
      const Operation operation(optimizer);
      for (float one : {1.0F, 2.0F}) {
        const float before = one;
        EXPECT_GE(optimizer.average({&one, 1}), 1);
        EXPECT_EQ(one, before);
      }
    }

    Tensor x = parameter({7}), y = parameter({3, 2}, 1), mine = at::zeros({1});
    Optimizer optimizer;
  };
};

TEST_P(Rejoin, AWorkerThatIsStartedAgainTakesPartAgain) {
  if (info().traits.path == Path::gradients) {
    EXPECT_THAT(refusal<UsageError>(
                    [&] { flock(2, [&](int, World& world) { Life life(seat_of(world), options()); }); }),
                HasSubstr("rejoin is not for scheme"));
    return;
  }
  std::atomic<std::uint64_t> last = ~std::uint64_t{0};  // step; unknown before the worker is back
  flock(kMany, [&](int i, World& world) {
    auto life = std::make_unique<Life>(seat_of(world), options());
    EXPECT_EQ(life->optimizer.steps(), 0U);
    if (i == 2) {
      while (life->optimizer.steps() < 5) life->step(i);
      life.reset();
      life = std::make_unique<Life>(seat_of(world), options());
      EXPECT_GE(life->optimizer.steps(), 4U);
      EXPECT_GT(life->mine.item<double>(), 0) << "the caller's tensors come too";
      const OptimizerState state = life->optimizer.state();
      EXPECT_GT(state.tensors.at("m.0.0").abs().max().item<double>(), 0) << "so does the rule's state";
      EXPECT_FALSE(at::equal(life->x, at::zeros({7})));
      last = life->optimizer.steps() + 12;
    }
    while (life->optimizer.steps() < last) life->step(i);
    nobody_leaves_yet(life->optimizer);
    EXPECT_THAT(life->optimizer.statistics().lost, IsEmpty());
    const Consensus consensus(life->optimizer);
    EXPECT_EQ(consensus.workers(), kMany);
    EXPECT_LT(consensus.distance(), 1);
  });
}
STARLING_EVERY_SCHEME(Rejoin);

Options ring() { return {.topology = "ring", .scheme = {"cta"}}; }

// A newcomer with other options harms nobody.
TEST(Membership, ANewcomerMustHaveTheSameOptions) {
  std::atomic<bool> refused = false;
  flock(3, [&](int i, World& world) {
    const Tensor x = parameter({4});
    auto optimizer = std::make_unique<Optimizer>(std::vector<Tensor>{x}, SGD{}, ring(), seat_of(world));
    optimizer->step();
    if (i == 1) {
      optimizer.reset();
      Options other = ring();
      other.wire = Wire::bf16;
      EXPECT_EQ(refusal<UsageError>([&] { Optimizer({x}, SGD{}, other, seat_of(world)); }),
                "this worker cannot join the run: its options or its parameters differ from the members'");
      refused = true;
      return;
    }
    while (!refused) {
      optimizer->step();
      std::this_thread::sleep_for(1ms);
    }
  });
}

TEST(Membership, ARunWithoutMembersCannotBeJoined) {
  flock(2, [&](int, World& world) {
    const Tensor x = parameter({4});
    {
      Optimizer optimizer({x}, SGD{}, ring(), seat_of(world));
    }
    EXPECT_THAT(refusal<UsageError>([&] { Optimizer({x}, SGD{}, ring(), seat_of(world)); }),
                HasSubstr("no member of it is left"));
  });
}

// 4 workers on a hypercube; 3 cannot form one.
TEST(Membership, ATopologyThatIsNotPossibleForFewerIsReplaced) {
  std::atomic<int> left = 0;
  std::atomic<std::uint64_t> last = ~std::uint64_t{0};
  LogLines lines;
  flock(4, [&](int i, World& world) {
    world = seat_of(world);
    world.log = lines.log();
    const Options options{.topology = "hypercube", .scheme = {"cta"}};
    const Tensor x = parameter({4});
    auto optimizer = std::make_unique<Optimizer>(std::vector<Tensor>{x}, SGD{}, options, world);
    optimizer->step();
    if (i > 1) {  // two leave, one comes back
      optimizer.reset();
      ++left;
      if (i == 3) return;
      ASSERT_TRUE(eventually([&] { return left == 2; }));
      world = seat_of(world);
      optimizer = std::make_unique<Optimizer>(std::vector<Tensor>{x}, SGD{}, options, world);
      last = optimizer->steps() + 5;
    }
    while (optimizer->steps() < last) optimizer->step();
    EXPECT_THAT(optimizer->statistics().lost, ElementsAre(3));
    nobody_leaves_yet(*optimizer);
  });
  EXPECT_THAT(lines.text(),
              HasSubstr("topology hypercube is not possible for 3 workers: going on with base-2"));
}

}  // namespace
}  // namespace starling
