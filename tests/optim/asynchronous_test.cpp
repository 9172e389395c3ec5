// Asynchronous gossip in the optimizer: together, workers reach the optimum of all of them.
// scheme_alone_test.cpp has one worker alone.
#include "starling/optim/options.h"
#include "starling/topology/schedules.h"
#include "tests/optim/every_scheme.h"

namespace starling {
namespace {

using namespace std::chrono_literals;
using at::Tensor;

// Two groups have two blocks.
std::vector<torch::optim::OptimizerParamGroup> two_groups(const Tensor& a, const Tensor& b) {
  return {torch::optim::OptimizerParamGroup({a}), torch::optim::OptimizerParamGroup({b})};
}

void pull_towards(const std::vector<Tensor>& parameters, double where) {
  for (const Tensor& x : parameters) x.mutable_grad() = x.detach() - where;
}

// Worker i descends towards 10 i, and the optimum of all is the mean. With small steps and many
// averagings, all workers are near it.
TEST(Asynchronous, WorkersReachTheMeanOfTheirOptima) {
  for (const SchemeInfo* const info : schemes()) {
    if (info->traits.path != Path::pairs) continue;
    for (const bool around : {false, true}) {
      SCOPED_TRACE(std::string(info->name) + (around ? " around torch's SGD" : ""));
      Options options = options_of(*info);
      options.scheme.options = {{"rate", 2}};
      virtual_flock(4, [&](int i, World& world, VirtualTime& time) {
        const Tensor a = parameter({1000}), b = parameter({7});
        torch::optim::SGD inner(two_groups(a, b), torch::optim::SGDOptions(0.01));
        const auto optimizer =
            around ? std::make_unique<Optimizer>(inner, options, world)
                   : std::make_unique<Optimizer>(two_groups(a, b), SGD{.lr = 0.01}, options, world);
        const auto go = [&](int steps) {
          for (int t = 0; t < steps; ++t) {
            time.sleep(1ms);
            pull_towards({a, b}, 10 * i);
            optimizer->step();
          }
        };
        go(600);
        {
          const Consensus average(*optimizer);
          EXPECT_EQ(average.workers(), 4);
          EXPECT_NEAR(a.mean().item<double>(), 15, 2);
          EXPECT_NEAR(b.mean().item<double>(), 15, 2);
          EXPECT_TRUE(is_all(a, a.mean().item<double>()));
          EXPECT_LT(average.distance(), 4);  // alone: 11.2
        }
        // Training goes on after it.
        const std::uint64_t averaged = optimizer->statistics().rounds;
        go(200);
        EXPECT_GT(optimizer->statistics().rounds, averaged);
        EXPECT_GT(optimizer->statistics().bytes_sent, 100 * 4000U);
        Consensus last(*optimizer);
        last.keep();
      });
    }
  }
}

// Two workers finish long before the third one, and wait for it in the average. Meanwhile it still
// averages with them.
TEST(Asynchronous, ASlowWorkerIsNotLeftAlone) {
  virtual_flock(3, [](int i, World& world, VirtualTime& time) {
    const Tensor x = parameter({1000});
    Optimizer optimizer({x}, SGD{.lr = 0.01}, {.topology = "complete", .scheme = {"ad-psgd", {{"rate", 2}}}},
                        world);
    constexpr int kSteps = 60;
    std::uint64_t halfway = 0;
    for (int t = 0; t < kSteps; ++t) {
      if (t == kSteps / 2) halfway = optimizer.statistics().rounds;
      pull_towards({x}, i);
      optimizer.step();
      time.sleep(i == 2 ? 40ms : 1ms);
    }
    const std::uint64_t end = optimizer.statistics().rounds;
    const Consensus average(optimizer);
    EXPECT_EQ(average.workers(), 3);
    EXPECT_EQ(average.first(), 0);
    if (i == 2) {
      EXPECT_GT(end, halfway + 10);
    }
  });
}

// Changes of parameters between two steps are not lost. Training goes on from the values that a
// consensus leaves. Both hold if workers have different weights, too.
TEST(Asynchronous, KeepsChangesBetweenSteps) {
  for (const std::string scheme : {"ad-psgd", "async-push-sum"}) {
    flock(2, [&](int i, World& world) {
      const Tensor x = parameter({100}, 3);
      Optimizer optimizer({x}, SGD{.lr = 0}, {.topology = "ring", .scheme = scheme}, world);
      x.mutable_grad() = at::full_like(x, 0);
      const auto train = [&] {
        for (int t = 0; t < 20; ++t) {
          optimizer.step();
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      };
      train();
      {
        const at::NoGradGuard guard;
        x.add_(i == 0 ? 2 : 4);
      }
      train();
      Tensor kept;
      {
        Consensus average(optimizer);
        average.keep();
        kept = x.detach().clone();
      }
      if (scheme == "ad-psgd") {
        EXPECT_TRUE(at::allclose(kept, at::full({100}, 6.0), 1e-6, 0));
      }
      train();
      EXPECT_TRUE(at::allclose(x.detach(), kept, 1e-6, 0)) << scheme;
    });
  }
}

// The fast worker adds the group long before the slow one, by more than the timeout to meet.
TEST(Asynchronous, AddingAGroupWaitsForAllWorkers) {
  virtual_flock(2, [](int i, World& world, VirtualTime& time) {
    const Tensor x = parameter({100}), y = parameter({50});
    world.timeouts.meet = std::chrono::seconds(5);
    Optimizer optimizer({x}, SGD{.lr = 0.01}, {.topology = "ring", .scheme = "a2cid2"}, world);
    pull_towards({x}, i);
    optimizer.step();
    if (i == 1) time.sleep(std::chrono::seconds(7));
    optimizer.add_param_group(torch::optim::OptimizerParamGroup({y}));
    pull_towards({x, y}, i);
    optimizer.step();
    EXPECT_EQ(Consensus(optimizer).workers(), 2);
  });
}

TEST(Asynchronous, GivenConstantsReplaceThePapers) {
  const PairRates rates = pair_rates(make_schedule("ring", 8), 1);
  const A2cid2 papers = a2cid2_of(rates);
  EXPECT_GT(papers.eta, 0);
  EXPECT_EQ(a2cid2_of(rates, 0.25).eta, 0.25);
  EXPECT_EQ(a2cid2_of(rates, 0.25).alpha_tilde, papers.alpha_tilde);
  EXPECT_EQ(a2cid2_of(rates, 0.25, 0.75).alpha_tilde, 0.75);
  EXPECT_EQ(a2cid2_of(rates, {}, 0.75).eta, papers.eta);
}

}  // namespace
}  // namespace starling
