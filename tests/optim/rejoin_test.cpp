// Workers that leave and come back while the others train. Each scheme of the table.
#include "tests/optim/every_scheme.h"
#include "tests/optim/seat.h"

namespace starling {
namespace {

using at::Tensor;
using testing::HasSubstr;
using testing::IsEmpty;

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
    void step(int i, float scale = 1) {
      x.mutable_grad() = scale * (x.detach() - centre(i, static_cast<int>(optimizer.steps())));
      y.mutable_grad() = scale * (y.detach() - i);
      optimizer.step();
      mine.fill_(static_cast<double>(optimizer.steps()));
      if (optimizer.joined() || optimizer.steps() % kAverageEvery != 0) return;
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
      EXPECT_EQ(life->optimizer.statistics().joins, 1U);
      EXPECT_GT(life->optimizer.statistics().membership, 0U);
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

TEST_P(Rejoin, TheRunBeginsWithSomeAndTheOthersComeLater) {
  if (info().traits.path == Path::gradients) return;  // refused, as above
  for (const int initial : {1, kMany - 1}) {
    SCOPED_TRACE(initial);
    std::atomic<int> there = initial;
    std::atomic<std::uint64_t> last = ~std::uint64_t{0};  // step; unknown before all are there
    flock(kMany, [&](int i, World& world) {
      world = seat_of(world);
      world.initial_size = initial;
      Life life(world, options());
      if (i >= initial && ++there == kMany) last = life.optimizer.steps() + 12;
      while (life.optimizer.steps() < last) life.step(i);
      nobody_leaves_yet(life.optimizer);
      EXPECT_THAT(life.optimizer.statistics().lost, IsEmpty());
      const Consensus consensus(life.optimizer);
      EXPECT_EQ(consensus.workers(), kMany);
      EXPECT_LT(consensus.distance(), 1);
    });
  }
}

// A newcomer adds the values that it begins with to the sum of all parameters. A gradient moves the
// sum by what its worker knows. So no exchange in flight is mixed at one end alone.
TEST_P(Rejoin, AWorkerThatComesChangesTheSumOfAllParametersByItsOwnAlone) {
  constexpr int kTimes = 8;
  if (!mixes() || in_pairs()) return;
  const bool both_ways =
      info().traits.edges == EdgeKind::symmetric || info().traits.edges == EdgeKind::lasting;
  // A push moves weights too, which begin anew with the members. Tracking keeps the sum of
  // gradients. A correction is added in each step, and a worker that goes on at a later step lacks
  // it.
  const bool keeps_sum = both_ways && !info().traits.exact;
  for (int time = 0; time < kTimes; ++time) {
    std::atomic<std::uint64_t> last = ~std::uint64_t{0};  // step; unknown before all are there
    std::array<Statistics, kMany> counts;
    std::array<double, kMany> alone{};  // without the others
    double mean = 0;
    flock(kMany, [&](int i, World& world) {
      world = seat_of(world);
      world.initial_size = kMany - 1;
      const auto me = static_cast<std::size_t>(i);
      const Tensor x = parameter({7});
      Optimizer optimizer({x}, SGD{.lr = 0.1}, without_momentum(), world);
      alone[me] = x[0].item<double>();
      if (i == kMany - 1) last = optimizer.steps() + 12;
      while (optimizer.steps() < last) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // thousands of steps would round
        const double g = centre(i, static_cast<int>(optimizer.steps()));
        x.mutable_grad() = at::full({7}, g);
        optimizer.step();
        alone[me] -= 0.1 * g;
      }
      nobody_leaves_yet(optimizer);
      counts[me] = optimizer.statistics();
      const Consensus consensus(optimizer);
      EXPECT_EQ(consensus.workers(), kMany);
      mean = x[0].item<double>();
    });
    for (std::size_t i = 0; i < kMany; ++i) {
      EXPECT_EQ(counts[i].round, counts[0].round);
      for (std::size_t j = 0; j < i && both_ways; ++j)
        EXPECT_EQ(counts[i].mixed[static_cast<int>(j)], counts[j].mixed[static_cast<int>(i)])
            << i << " " << j;
    }
    if (keeps_sum) {
      EXPECT_NEAR(kMany * mean, std::accumulate(alone.begin(), alone.end(), 0.0), 1e-4);
    }
  }
}

// Values that one worker's parameters get in mid-run.
struct Corrupt {
  double to;  // they become
  double jump_guard;
};

// A worker that others push to may also become well by their blocks alone.
TEST_P(Rejoin, AWorkerWithNaNsOrValuesThatJumpBecomesWellAndHarmsNobody) {
  constexpr double kWell = 10;  // values below this
  constexpr int kCalm = 12;     // steps
  if (!mixes()) return;
  for (const auto& [to, jump_guard] : {Corrupt{NAN, 0}, Corrupt{1e6, 1000}}) {
    SCOPED_TRACE(to);
    Options guarded = options();
    guarded.jump_guard = jump_guard;
    if (refusal<UsageError>([&] { check_options(guarded, kMany, kMany, false); }) != "accepted") continue;
    std::atomic<std::uint64_t> last = ~std::uint64_t{0};  // step; unknown before the worker is well
    std::atomic<std::uint64_t> refused = 0;
    std::atomic<int> ready = 0;  // guards
    flock(kMany, [&](int i, World& world) {
      world.log = [&](Level, const std::string& line) { ready += line.starts_with("jump_guard:") ? 1 : 0; };
      Life life(seat_of(world), guarded);
      const auto is_well = [&] { return (life.x.abs() < kWell).all().item<bool>(); };
      while (life.optimizer.steps() < 5 || (i == 2 && jump_guard > 0 && ready < kMany)) life.step(i);
      if (i == 2) {
        if (std::isnan(to)) {
          life.step(i, NAN);
        } else {
          life.x.detach().fill_(to);
        }
        for (int calm = 0; calm < kCalm;) {
          life.step(i);
          calm = is_well() && !life.optimizer.joined() ? calm + 1 : 0;
        }
        last = life.optimizer.steps() + kCalm;
      }
      while (life.optimizer.steps() < last) life.step(i);
      EXPECT_TRUE(is_well());
      refused += life.optimizer.statistics().jumped;
      nobody_leaves_yet(life.optimizer);
      const Consensus consensus(life.optimizer);
      EXPECT_EQ(consensus.workers(), kMany);
      EXPECT_LT(consensus.distance(), kWell);
    });
    EXPECT_EQ(refused > 0, jump_guard > 0);
  }
}
STARLING_EVERY_SCHEME(Rejoin);

// Takes another worker's state as often, each time after so many sound steps.
void spoil(Optimizer& optimizer, const Tensor& x, int times, int sound_steps) {
  for (int k = 0; k < times; ++k) {
    for (int t = 0; t < sound_steps; ++t) optimizer.step();
    x.detach().fill_(NAN);
    do optimizer.step();
    while (!optimizer.joined());
  }
}

TEST(Membership, AWorkerThatIsSpoiledNowAndThenGoesOnAndOneThatIsAgainAndAgainEnds) {
  std::atomic<bool> is_over = false;
  flock(2, [&](int i, World& world) {
    const Tensor x = parameter({4});
    Optimizer optimizer({x}, SGD{}, {.topology = "ring", .scheme = {"cta"}}, seat_of(world));
    if (i == 0) {
      while (!is_over) optimizer.step();
      return;
    }
    spoil(optimizer, x, 5, 1001);
    const std::string why = refusal<Error>([&] { spoil(optimizer, x, 4, 1); });
    EXPECT_THAT(why, HasSubstr("has taken the state of another worker 3 times, and ends"));
    is_over = true;
  });
}

}  // namespace
}  // namespace starling
