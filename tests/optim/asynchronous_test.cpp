// Asynchronous gossip in the optimizer: alone it is the rule itself; together workers come to what is best for all of them.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "starling/core/error.h"
#include "starling/optim/optimizer.h"
#include "starling/optim/options.h"
#include "starling/topology/schedules.h"
#include "tests/optim/flock.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using at::Tensor;

constexpr const char* kAsynchronous[] = {"a2cid2", "ad-psgd",        "ad-psgd-bipartite",
                                         "swarm",  "async-push-sum", "async-push-pull"};
// Two groups, so two blocks.
std::vector<torch::optim::OptimizerParamGroup> two_groups(const Tensor& a, const Tensor& b) {
  return {torch::optim::OptimizerParamGroup({a}), torch::optim::OptimizerParamGroup({b})};
}

void pull_towards(const std::vector<Tensor>& parameters, double where) {
  for (const Tensor& x : parameters) x.mutable_grad() = x.detach() - where;
}

TEST(Asynchronous, AloneItIsTheRule) {
  for (const std::string scheme : kAsynchronous) {
    flock(1, [&](int, World& world) {
      const Tensor mine = parameter({300}, 1), torchs = parameter({300}, 1);
      Optimizer optimizer({mine}, AdamW{.lr = 0.1, .weight_decay = 0.1}, {.scheme = scheme}, world);
      torch::optim::AdamW reference({torchs}, torch::optim::AdamWOptions(0.1).weight_decay(0.1));
      for (int t = 0; t < 20; ++t) {
        pull_towards({mine}, centre(0, t));
        pull_towards({torchs}, centre(0, t));
        optimizer.step();
        reference.step();
      }
      EXPECT_TRUE(at::allclose(mine.detach(), torchs.detach(), 1e-5, 1e-6));
      EXPECT_EQ(optimizer.statistics().committed, 0U);
    });
  }
}

// x is the fp32 master then: alone it is what any other scheme makes of it.
TEST(Asynchronous, NarrowParametersHaveTheirMasters) {
  for (const std::string scheme : kAsynchronous) {
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
      flock(1, [&](int, World& world) {
        const auto trained = [&](const Options& options) {
          const Tensor x = at::full({300}, 1, type).set_requires_grad(true);
          Optimizer optimizer({x}, AdamW{.lr = 1e-3, .weight_decay = 0.1}, options, world);
          for (int t = 0; t < 20; ++t) {
            if (t == 10) {
              const at::NoGradGuard guard;
              x.index({at::indexing::Slice(0, 50)}).fill_(2);  // somebody changes it
            }
            pull_towards({x}, centre(0, t));
            optimizer.step();
          }
          const Consensus same(optimizer);  // what is not in x yet comes there
          const Tensor master = optimizer.state().tensors.at("master.0.0");
          EXPECT_TRUE(at::equal(master.to(type), x.detach())) << scheme;
          return master.clone();
        };
        const Tensor reference = trained({.scheme = "cta"});
        EXPECT_TRUE(at::allclose(trained({.scheme = scheme}), reference, 1e-5, 1e-6)) << scheme;
        EXPECT_GT(reference.index({0}).item<double>(), 1.5);
      });
    }
  }
}

// Worker i is drawn to 10 i; the best for all is the mean. With small steps and many averagings all are near it.
TEST(Asynchronous, WorkersComeToTheMeanOfWhatTheyAreDrawnTo) {
  for (const std::string scheme : {"a2cid2", "ad-psgd", "async-push-sum", "async-push-pull"}) {
    for (const bool around : {false, true}) {
      constexpr int n = 4;
      std::atomic<int> done = 0;
      std::array<std::atomic<int>, n> made{};
      flock(n, [&](int i, World& world) {
        const Tensor a = parameter({1000}), b = parameter({7});
        torch::optim::SGD inner(two_groups(a, b), torch::optim::SGDOptions(0.01));
        const Options options{.topology = "ring", .scheme = {scheme, {{"rate", 2}}}};
        const auto optimizer =
            around ? std::make_unique<Optimizer>(inner, options, world)
                   : std::make_unique<Optimizer>(two_groups(a, b), SGD{.lr = 0.01}, options, world);
        std::atomic<int>& mine_made = made[static_cast<std::size_t>(i)];
        double distance = 4, off = 2;
        // Where threads wait for processors, averagings may have been few just now: then once more.
        for (int tries = 1; (distance >= 4 || off >= 2) && tries <= 10; ++tries) {
          // Until all have made so many gradients: who is done with its own keeps pulling.
          for (int t = 0; done < n * tries && t < 60'000; ++t) {
            if (t == 600) ++done;
            pull_towards({a, b}, 10 * i);
            optimizer->step();
            ++mine_made;
            do {  // nobody gets far ahead of one that waits for a processor
              std::this_thread::sleep_for(std::chrono::milliseconds(1));
            } while (mine_made > *std::min_element(made.begin(), made.end()) + 20 && done < n * tries);
          }
          Consensus average(*optimizer);
          EXPECT_EQ(average.workers(), n);
          off = std::max(std::abs(a.mean().item<double>() - 15), std::abs(b.mean().item<double>() - 15));
          const double mine = a.mean().item<double>();
          EXPECT_TRUE(is_all(a, mine));
          distance = average.distance();
        }
        EXPECT_LT(distance, 4) << scheme;  // alone: 11.2
        EXPECT_LT(off, 2) << scheme;
        // Training goes on after it.
        const std::uint64_t averaged = optimizer->statistics().rounds;
        for (int t = 0; t < 200; ++t) {
          pull_towards({a, b}, 10 * i);
          optimizer->step();
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        EXPECT_GT(optimizer->statistics().rounds, averaged);
        EXPECT_GT(optimizer->statistics().bytes_sent, 100 * 4000U);
        Consensus last(*optimizer);
        last.keep();
      });
    }
  }
}

// Two are through with their steps long before the third one, and wait for it in the average: meanwhile it averages with them.
TEST(Asynchronous, WhoIsSlowIsNotLeftAlone) {
  flock(3, [](int i, World& world) {
    const Tensor x = parameter({1000});
    Optimizer optimizer({x}, SGD{.lr = 0.01}, {.topology = "complete", .scheme = {"ad-psgd", {{"rate", 2}}}},
                        world);
    constexpr int kSteps = 60;
    std::uint64_t halfway = 0;
    for (int t = 0; t < kSteps; ++t) {
      if (t == kSteps / 2) halfway = optimizer.statistics().rounds;
      pull_towards({x}, i);
      optimizer.step();
      std::this_thread::sleep_for(std::chrono::milliseconds(i == 2 ? 40 : 1));
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

// What is done to parameters between two steps is not lost, and what the consensus puts there is where training goes on; also where
// workers have different weights.
TEST(Asynchronous, WhatIsDoneToParametersBetweenStepsCounts) {
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

// The fast worker comes to it long before the slow one: longer than workers that meet wait for each other.
TEST(Asynchronous, WhoAddsAGroupWaitsForTheOthers) {
  flock(2, [](int i, World& world) {
    const Tensor x = parameter({100}), y = parameter({50});
    world.timeouts.meet = std::chrono::seconds(5);
    Optimizer optimizer({x}, SGD{.lr = 0.01}, {.topology = "ring", .scheme = "a2cid2"}, world);
    pull_towards({x}, i);
    optimizer.step();
    if (i == 1) std::this_thread::sleep_for(std::chrono::seconds(7));
    optimizer.add_param_group(torch::optim::OptimizerParamGroup({y}));
    pull_towards({x, y}, i);
    optimizer.step();
    EXPECT_EQ(Consensus(optimizer).workers(), 2);
  });
}

TEST(Asynchronous, RefusesInOneLine) {
  const auto make = [](Options options, at::ScalarType type = at::kFloat) {
    return refusal([&] {
      World alone;
      Optimizer optimizer({at::zeros({2}, type).set_requires_grad(true)}, SGD{}, options, alone);
    });
  };
  EXPECT_EQ(make({.scheme = "ad-psgd", .one_in = 2}),
            "scheme \"ad-psgd\" needs one_in = 1, not 2: an averaging is of all values");
  EXPECT_EQ(make({.scheme = "a2cid2", .max_wait = std::chrono::seconds(1)}),
            "max_wait is not for scheme \"a2cid2\", which waits for nobody: leave it out");
  EXPECT_EQ(make({.scheme = {"a2cid2", {{"rate", 0}}}}),
            "rate = 0 is not allowed: at least 0.001 and at most 1000");
  EXPECT_EQ(make({.scheme = {"cta", {{"rate", 2}}}}),
            "rate = 2 is for schemes a2cid2, ad-psgd, ad-psgd-bipartite, swarm, async-push-sum, "
            "async-push-pull, not \"cta\": "
            "use 1");
  EXPECT_EQ(make({.scheme = {"ad-psgd", {{"clock", "even"}}}}),
            "clock \"even\" is not allowed: poisson or fixed");
  EXPECT_THAT(make({.scheme = {"cta", {{"clock", "fixed"}}}}),
              testing::StartsWith("clock \"fixed\" is for schemes a2cid2, "));
  EXPECT_EQ(make({.scheme = {"a2cid2", {{"eta", -0.5}}}}),
            "eta = -0.5 is not allowed: at least 0 and at most 1000");
  EXPECT_EQ(make({.scheme = {"a2cid2", {{"alpha_tilde", 1001}}}}),
            "alpha_tilde = 1001 is not allowed: at least 0 and at most 1000");
  EXPECT_EQ(make({.scheme = {"ad-psgd", {{"eta", 0.5}}}}),
            "eta = 0.5 is for scheme \"a2cid2\", not \"ad-psgd\": leave it out");
  EXPECT_EQ(make({.scheme = {"ad-psgd", {{"local_steps", 2}}}}),
            "local_steps = 2 is for scheme \"swarm\", not \"ad-psgd\": use 1");
  EXPECT_EQ(make({.scheme = {"swarm", {{"local_steps", 0}}}}),
            "local_steps = 0 is not allowed: at least 1 and at most 1048576");
  EXPECT_THAT(make({.topology = "n-peer-exponential-1", .scheme = "async-push-sum", .wire = Wire::int8}),
              testing::HasSubstr("scheme \"async-push-sum\" needs wire fp32, bf16, fp16, not \"int8\""));
  EXPECT_EQ(make({.scheme = "a2cid2", .hierarchy = "node"}),
            "hierarchy \"node\" needs scheme \"cta\", not \"a2cid2\"");
}

TEST(Asynchronous, GivenConstantsAreInPlaceOfThePapers) {
  const PairRates rates = pair_rates(make_schedule("ring", 8), 1);
  const A2cid2 papers = a2cid2_of(rates);
  EXPECT_GT(papers.eta, 0);
  EXPECT_EQ(a2cid2_of(rates, 0.25).eta, 0.25);
  EXPECT_EQ(a2cid2_of(rates, 0.25).alpha_tilde, papers.alpha_tilde);
  EXPECT_EQ(a2cid2_of(rates, 0.25, 0.75).alpha_tilde, 0.75);
  EXPECT_EQ(a2cid2_of(rates, {}, 0.75).eta, papers.eta);
}

TEST(Asynchronous, AGraphWithoutTwoSidesIsRefused) {
  const Options options{.topology = "complete", .scheme = "ad-psgd-bipartite"};
  EXPECT_THAT(refusal([&] { check_options(options, 3, 1, false); }),
              testing::HasSubstr("the graph has no two sides: neighbours 1 and 2 would be on the same"));
  check_options(options, 2, 1, false);
}

}  // namespace
}  // namespace starling
