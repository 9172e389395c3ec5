// What training loops do and expect, each a test of its own; against plain loops in double or torch's own optimizers.
// Workers are threads.
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>

#include "starling/core/error.h"
#include "starling/optim/optimizer.h"
#include "starling/topology/schedules.h"
#include "tests/optim/flock.h"
#include "tests/optim/plain.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using at::Tensor;
using testing::HasSubstr;

// Per worker, x after `steps` steps of AdamW from 0.5: at step t with rule(t), and a gradient where used(worker, t).
std::vector<double> plain_loops(const std::string& scheme, const std::string& topology, int steps,
                                const std::function<AdamW(int)>& rule,
                                const std::function<bool(int, int)>& used) {
  const Schedule schedule = make_schedule(topology, kWorkers);
  std::vector<double> x(kWorkers, 0.5);
  std::vector<Plain> plain(kWorkers);
  for (int t = 1; t <= steps; ++t) {
    const AdamW o = rule(t);
    const std::vector<double> old = x;
    if (scheme == "cta") x = mixed(x, schedule.at(t - 1));
    for (int i = 0; i < kWorkers; ++i) {
      const auto k = static_cast<std::size_t>(i);
      if (!used(i, t)) continue;
      const double u =
          plain[k].direction(old[k] - centre(i, t), {.betas = o.betas, .eps = o.eps, .window = 1});
      x[k] = (1 - o.lr * o.weight_decay) * x[k] - o.lr * u;
    }
    if (scheme == "atc") x = mixed(x, schedule.at(t - 1));
  }
  return x;
}

// The loss whose gradient plain_loops() has, of all parameters that require one.
Tensor loss_of(const std::vector<Tensor>& parameters, int i, int t) {
  Tensor loss = at::zeros({});
  for (const Tensor& p : parameters) {
    if (p.requires_grad()) loss = loss + (p - centre(i, t)).square().sum() * 0.5;
  }
  return loss;
}

// --- gradients ---

TEST(Semantics, AccumulationOverMicroBatchesIsOneBigBatch) {
  constexpr int kMicro = 4, kRows = 8;
  const auto waves = [](std::int64_t rows, std::int64_t columns, double phase) {
    return at::sin(at::arange(rows * columns, at::kFloat) * 1.7 + phase).view({rows, columns});
  };
  for (const std::string scheme : {"cta", "atc", "all-reduce"}) {
    flock(kWorkers, [&](int i, World& world) {
      const Options options{.topology = "base-2", .scheme = scheme};
      const Tensor big = waves(5, 2, 0.3).set_requires_grad(true),
                   sum = waves(5, 2, 0.3).set_requires_grad(true);
      Optimizer once(std::vector<Tensor>{big}, AdamW{.lr = 0.05}, options, world);
      Optimizer often(std::vector<Tensor>{sum}, AdamW{.lr = 0.05}, options, world);
      for (int t = 1; t <= 8; ++t) {
        const Tensor inputs = waves(kMicro * kRows, 5, i + t), targets = waves(kMicro * kRows, 2, i - t);
        once.zero_grad();
        at::mse_loss(at::mm(inputs, big), targets).backward();
        once.step();
        often.zero_grad();
        for (int k = 0; k < kMicro; ++k) {
          const auto part = [&](const Tensor& all) { return all.slice(0, k * kRows, (k + 1) * kRows); };
          (at::mse_loss(at::mm(part(inputs), sum), part(targets)) / kMicro).backward();
        }
        often.step();
      }
      EXPECT_TRUE(at::allclose(big.detach(), sum.detach(), 1e-4, 1e-5)) << scheme << ", worker " << i;
      EXPECT_FALSE(at::allclose(big.detach(), waves(5, 2, 0.3), 0.1, 0.1));
      EXPECT_EQ(often.statistics().rounds, once.statistics().rounds);  // nothing is sent in between
    });
  }
}

// The norm is of all parameters together, over all blocks and groups: what clip_grad_norm_ changed is what step() takes.
TEST(Semantics, ClippingIsByTheGlobalNorm) {
  constexpr double kLr = 0.1, kMost = 3;
  const std::vector<std::int64_t> sizes{90'000, 70'000, 1, 333};
  const auto slope = [](int i, int t, std::size_t k) {
    return 0.02 * static_cast<double>(k + 1) * centre(i, t + static_cast<int>(k));
  };
  for (const std::string scheme : {"cta", "atc", "all-reduce"}) {
    std::vector<std::vector<double>> x(sizes.size(), std::vector<double>(kWorkers, 0.5));  // by parameter
    const Schedule schedule = make_schedule("base-2", kWorkers);
    bool clipped = false, unclipped = false;
    for (int t = 1; t <= 6; ++t) {
      std::vector<double> scale;
      for (int i = 0; i < kWorkers; ++i) {
        double square = 0;
        for (std::size_t k = 0; k < sizes.size(); ++k)
          square += static_cast<double>(sizes[k]) * slope(i, t, k) * slope(i, t, k);
        scale.push_back(std::min(1.0, kMost / (std::sqrt(square) + 1e-6)));
        (scale.back() < 1 ? clipped : unclipped) = true;
      }
      for (std::size_t k = 0; k < sizes.size(); ++k) {
        double mean = 0;
        for (int i = 0; i < kWorkers; ++i)
          mean += scale[static_cast<std::size_t>(i)] * slope(i, t, k) / kWorkers;
        if (scheme == "cta") x[k] = mixed(x[k], schedule.at(t - 1));
        for (int i = 0; i < kWorkers; ++i) {
          const auto w = static_cast<std::size_t>(i);
          x[k][w] -= kLr * (scheme == "all-reduce" ? mean : scale[w] * slope(i, t, k));
        }
        if (scheme == "atc") x[k] = mixed(x[k], schedule.at(t - 1));
      }
    }
    EXPECT_TRUE(clipped && unclipped);
    flock(kWorkers, [&](int i, World& world) {
      std::vector<Tensor> parameters;
      for (const std::int64_t size : sizes) parameters.push_back(parameter({size}, 0.5));
      Optimizer optimizer(parameters, SGD{.lr = kLr}, {.topology = "base-2", .scheme = scheme}, world);
      for (int t = 1; t <= 6; ++t) {
        for (std::size_t k = 0; k < sizes.size(); ++k)
          parameters[k].mutable_grad() = at::full({sizes[k]}, slope(i, t, k));
        torch::nn::utils::clip_grad_norm_(parameters, kMost);
        optimizer.step();
      }
      for (std::size_t k = 0; k < sizes.size(); ++k) {
        EXPECT_TRUE(is_all(parameters[k], x[k][static_cast<std::size_t>(i)]))
            << scheme << ", worker " << i << ", parameter " << k;
      }
    });
  }
}

TEST(Semantics, AnUnusedParameterIsMixedButNotUpdated) {
  flock(2, [](int i, World& world) {
    const Tensor p = parameter({10}), unused = parameter({10}, 1);
    Optimizer optimizer({p, unused}, AdamW{.lr = 0.1, .weight_decay = 0.5}, {.topology = "complete"}, world);
    const auto step = [&] {
      p.mutable_grad() = at::ones({10});
      optimizer.step();
    };
    step();
    EXPECT_TRUE(at::equal(unused.detach(), at::ones({10})));  // no decay either
    {
      const c10::AutoGradMode no_gradient(false);
      unused.fill_(i == 0 ? 4 : 2);  // between steps it is the user's; the wire is sent at the end of a step
    }
    step();
    EXPECT_TRUE(at::equal(unused.detach(), at::full({10}, i == 0 ? 4.0 : 2.0)));
    step();
    EXPECT_TRUE(at::equal(unused.detach(), at::full({10}, 3.0)));
  });
}

// One that is used by other workers, or in other steps, than its neighbours': nobody has to agree on it.
TEST(Semantics, AParameterMayBeUnusedBySomeWorkersInSomeSteps) {
  const AdamW rule{.lr = 0.05, .weight_decay = 0.1};
  const auto used = [](int i, int t) { return (t + i) % 3 != 0 && i != 2; };
  for (const std::string scheme : {"cta", "atc"}) {
    const auto x = plain_loops(scheme, "ring", 12, [&](int) { return rule; }, used);
    flock(kWorkers, [&](int i, World& world) {
      const Tensor always = parameter({70'000}, 0.5), sometimes = parameter({70'000}, 0.5);
      Optimizer optimizer({always, sometimes}, rule, {.topology = "ring", .scheme = scheme}, world);
      for (int t = 1; t <= 12; ++t) {
        optimizer.zero_grad();
        loss_of({always}, i, t).backward();
        if (used(i, t)) loss_of({sometimes}, i, t).backward();
        optimizer.step();
      }
      EXPECT_TRUE(is_all(sometimes, x[static_cast<std::size_t>(i)])) << scheme << ", worker " << i;
    });
  }
}

// --- parameters ---

// An encoder and a decoder with one matrix.
struct Tied : torch::nn::Module {
  Tied() {
    weight = parameter({4, 3}, 0.5);
    register_parameter("encoder", weight);
    register_parameter("decoder", weight);
  }
  Tensor weight;
};

TEST(Semantics, ASharedParameterAppearsOnce) {
  flock(kWorkers, [](int i, World& world) {
    Tied tied;
    ASSERT_EQ(tied.parameters().size(), 2U);
    const Tensor alone = parameter({4, 3}, 0.5);
    Optimizer once(tied, AdamW{.lr = 0.05}, {.topology = "complete"}, world);
    Optimizer reference(std::vector<Tensor>{alone}, AdamW{.lr = 0.05}, {.topology = "complete"}, world);
    EXPECT_EQ(once.parameter_count(), 12);
    for (int t = 1; t <= 5; ++t) {
      once.zero_grad();
      loss_of({tied.weight, tied.weight}, i, t).backward();  // both uses add to one gradient
      once.step();
      alone.mutable_grad() = 2 * (alone.detach() - centre(i, t));
      reference.step();
    }
    EXPECT_TRUE(at::equal(tied.weight.detach(), alone.detach()));
    EXPECT_TRUE(at::equal(tied.parameters()[1].detach(), alone.detach()));
  });
}

TEST(Semantics, AParameterThatIsGivenTwiceIsRefused) {
  const World world = World::alone();
  const Tensor a = parameter({2}), b = parameter({2});
  EXPECT_EQ(refusal<UsageError>([&] { Optimizer({a, b, a}, SGD{}, {}, world); }),
            "parameter 2 of group 0 is parameter 0 of group 0 again: give it once");
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<Tensor>{a});
  groups.emplace_back(std::vector<Tensor>{b, a});
  EXPECT_EQ(refusal<UsageError>([&] { Optimizer(groups, SGD{}, {}, world); }),
            "parameter 1 of group 1 is parameter 0 of group 0 again: give it once");
  Optimizer optimizer({a, b}, SGD{}, {}, world);
  optimizer.add_param_group({{b}});
  EXPECT_EQ(refusal<UsageError>([&] { optimizer.step(); }),
            "parameter 0 of group 1 is parameter 1 of group 0 again: give it once");
}

// Frozen, it is mixed and not updated; its moments and its step count wait, and go on where they were.
TEST(Semantics, AParameterFrozenInMidRunIsMixedAndItsMomentsWait) {
  const AdamW rule{.lr = 0.05, .weight_decay = 0.1};
  const auto all_freeze = [](int, int t) { return t < 5 || t > 8; };
  const auto one_freezes = [](int i, int t) { return i != 1 || t < 4 || t > 9; };
  const auto at = [&](int) { return rule; };
  for (const std::string scheme : {"cta", "atc"}) {
    const auto x = plain_loops(scheme, "base-2", 13, at, all_freeze);
    const auto y = plain_loops(scheme, "base-2", 13, at, one_freezes);
    flock(kWorkers, [&](int i, World& world) {
      const Tensor by_all = parameter({80'000}, 0.5), by_one = parameter({5}, 0.5),
                   never = parameter({5}, 0.5);
      Optimizer optimizer({by_all, by_one, never}, rule, {.topology = "base-2", .scheme = scheme}, world);
      for (int t = 1; t <= 13; ++t) {
        by_all.set_requires_grad(all_freeze(i, t));
        by_one.set_requires_grad(one_freezes(i, t));
        optimizer.zero_grad();
        loss_of({by_all, by_one, never}, i, t).backward();
        optimizer.step();
      }
      EXPECT_TRUE(is_all(by_all, x[static_cast<std::size_t>(i)])) << scheme << ", worker " << i;
      EXPECT_TRUE(is_all(by_one, y[static_cast<std::size_t>(i)])) << scheme << ", worker " << i;
    });
  }
}

// Fine-tuning that thaws a layer late: given from the start, the parameter begins with its first gradient.
TEST(Semantics, AFrozenParameterUnfrozenInMidRunBeginsAtItsFirstStep) {
  const AdamW rule{.lr = 0.05, .weight_decay = 0.1};
  const auto thawed = [](int, int t) { return t > 5; };
  const auto x = plain_loops("cta", "base-2", 11, [&](int) { return rule; }, thawed);
  flock(kWorkers, [&](int i, World& world) {
    const Tensor late = parameter({6}, 0.5).set_requires_grad(false), always = parameter({6}, 0.5);
    Optimizer optimizer({late, always}, rule, {.topology = "base-2"}, world);
    for (int t = 1; t <= 11; ++t) {
      late.set_requires_grad(thawed(i, t));
      optimizer.zero_grad();
      loss_of({late, always}, i, t).backward();
      optimizer.step();
    }
    EXPECT_TRUE(is_all(late, x[static_cast<std::size_t>(i)])) << "worker " << i;
  });
}

// Of a module only what requires a gradient is taken; what is thawed later is added.
TEST(Semantics, AModulesFrozenParameterIsAddedWhenItIsUnfrozen) {
  struct Net : torch::nn::Module {
    Net() {
      head = register_parameter("head", at::full({6}, 0.5));
      body = register_parameter("body", at::full({6}, 0.5), false);
    }
    Tensor head, body;
  };
  flock(kWorkers, [](int i, World& world) {
    Net net;
    Optimizer optimizer(net, SGD{.lr = 0.5}, {.topology = "complete", .scheme = "atc"}, world);
    EXPECT_EQ(optimizer.parameter_count(), 6);
    double head = 0.5, body = 0.5, mean = 0;
    for (int t = 1; t <= 6; ++t) {
      if (t == 4) {
        EXPECT_TRUE(is_all(net.body, 0.5));
        net.body.set_requires_grad(true);
        optimizer.add_param_group({{net.body}});
      }
      optimizer.zero_grad();
      loss_of({net.head, net.body}, i, t).backward();
      optimizer.step();
      mean = (centre(0, t) + centre(1, t) + centre(2, t)) / kWorkers;
      head -= 0.5 * (head - mean);
      if (t >= 4) body -= 0.5 * (body - mean);
    }
    EXPECT_EQ(optimizer.parameter_count(), 12);
    EXPECT_TRUE(is_all(net.head, head));
    EXPECT_TRUE(is_all(net.body, body));
  });
}

// Adam's moments of the old group go on; the new group begins with rank 0's values on all workers.
TEST(Semantics, AParameterGroupMayBeAddedInMidRun) {
  for (const std::string scheme : {"cta", "atc", "all-reduce"}) {
    flock(kWorkers, [&](int i, World& world) {
      const Tensor early = parameter({90'000}, 1), alone = parameter({90'000}, 1),
                   late = parameter({5}, i + 3);
      const Options options{.topology = "complete", .scheme = scheme};
      Optimizer grows(std::vector<Tensor>{early}, Adam{.lr = 0.1}, options, world);
      Optimizer fixed(std::vector<Tensor>{alone}, Adam{.lr = 0.1}, options, world);
      for (int t = 1; t <= 6; ++t) {
        if (t == 3) grows.add_param_group({{late}});
        early.mutable_grad() = early.detach() - centre(i, t);
        alone.mutable_grad() = alone.detach() - centre(i, t);
        grows.step();
        fixed.step();
        if (t == 3) {
          EXPECT_TRUE(at::equal(late.detach(), at::full({5}, 3.0)));  // it has no gradient yet
        }
      }
      EXPECT_TRUE(at::equal(early.detach(), alone.detach())) << scheme << ", worker " << i;
      EXPECT_EQ(grows.statistics().rounds, fixed.statistics().rounds + (scheme == "cta" ? 1 : 0));
      EXPECT_EQ(grows.parameter_count(), 90'005);
    });
  }
}

TEST(Semantics, AnAddedGroupKeepsItsOwnOptions) {
  const World world = World::alone();
  const Tensor early = parameter({2}, 1), late = parameter({2}, 1);
  Optimizer optimizer(std::vector<Tensor>{early}, SGD{.lr = 0.1}, {}, world);
  optimizer.add_param_group({{late}, rule_options(SGD{.lr = 0.5})});
  early.mutable_grad() = at::ones({2});
  late.mutable_grad() = at::ones({2});
  optimizer.step();
  EXPECT_TRUE(is_all(early, 0.9));
  EXPECT_TRUE(is_all(late, 0.5));
}

// Around an optimizer of torch's, it is added there.
TEST(Semantics, AGroupAddedToTheOptimizerInsideIsExchangedToo) {
  flock(kWorkers, [](int i, World& world) {
    const Tensor early = parameter({10}, 1), late = parameter({5}, i + 3);
    torch::optim::SGD inner({early}, torch::optim::SGDOptions(0.5));
    Optimizer optimizer(inner, {.topology = "complete", .scheme = "atc"}, world);
    double x = 1, y = 3;  // rank 0's value
    for (int t = 1; t <= 5; ++t) {
      if (t == 3) inner.add_param_group({{late}});
      inner.zero_grad();
      loss_of({early}, i, t).backward();
      if (t > 3) loss_of({late}, i, t).backward();
      optimizer.step();
      const double mean = (centre(0, t) + centre(1, t) + centre(2, t)) / kWorkers;
      x -= 0.5 * (x - mean);
      if (t > 3) y -= 0.5 * (y - mean);
    }
    EXPECT_TRUE(is_all(early, x));
    EXPECT_TRUE(is_all(late, y));
    EXPECT_EQ(optimizer.parameter_count(), 15);
  });
}

TEST(Semantics, ParametersThatAreAddedAtTheWrongPlaceAreRefused) {
  const World world = World::alone();
  Optimizer optimizer(std::vector<Tensor>{parameter({2})}, SGD{}, {}, world);
  optimizer.add_parameters({parameter({3})});
  EXPECT_EQ(refusal<UsageError>([&] { optimizer.step(); }),
            "parameter group 0 was made with 1 parameters and has 2 now: add them as a group of their own");
  torch::optim::SGD inner({parameter({2})}, torch::optim::SGDOptions(0.5));
  Optimizer around(inner, {}, world);
  around.add_param_group({{parameter({3})}});
  EXPECT_EQ(refusal<UsageError>([&] { around.step(); }),
            "parameter group 1 was added to the optimizer around another one: add it to that other one");
}

// --- the loop ---

// The rule for uneven data: who is done says so, and the others go on without it, its weight on themselves. The average
// at the end waits for all.
TEST(Semantics, WorkersWithDifferentNumbersOfBatchesEndWithoutAHang) {
  for (const std::string scheme : {"cta", "atc"}) {
    flock(kWorkers, [&](int i, World& world) {
      const Tensor p = parameter({100'000}, i);
      Optimizer optimizer(std::vector<Tensor>{p}, SGD{.lr = 0.1}, {.topology = "complete", .scheme = scheme},
                          world);
      for (int t = 1; t <= 4 + 3 * i; ++t) {
        p.mutable_grad() = p.detach() - centre(i, t);
        optimizer.step();
      }
      const Tensor before = p.detach().clone();
      {
        const Consensus average(optimizer);
        EXPECT_EQ(average.workers(), kWorkers);
      }
      EXPECT_TRUE(at::equal(p.detach(), before));
    });
  }
}

// Also for those who are nobody's neighbours, and longer than workers that meet wait for each other.
TEST(Semantics, WhoComesLateToAnAverageIsWaitedFor) {
  flock(4, [](int i, World& world) {
    world.timeouts.meet = std::chrono::seconds(5);
    Optimizer optimizer({parameter({100}, i)}, SGD{.lr = 0.1}, {.topology = "ring"}, world);
    if (i == 3) std::this_thread::sleep_for(std::chrono::seconds(7));
    EXPECT_EQ(Consensus(optimizer).workers(), 4);
  });
}

// By hand, and by torch's schedulers.
TEST(Semantics, ALearningRateChangedBetweenStepsIsTheNextSteps) {
  const auto rule = [](int t) {
    return AdamW{.lr = (t == 1 ? 0.2 : 0.08) * (t > 9 ? 0.25 : t > 5 ? 0.5 : 1), .weight_decay = 0.1};
  };
  for (const std::string scheme : {"cta", "atc"}) {
    const auto x = plain_loops(scheme, "base-2", 12, rule, [](int, int) { return true; });
    flock(kWorkers, [&](int i, World& world) {
      const Tensor p = parameter({9}, 0.5);
      Optimizer optimizer(std::vector<Tensor>{p}, rule(1), {.topology = "base-2", .scheme = scheme}, world);
      torch::optim::StepLR halves(optimizer, 4, 0.5);  // torch's halves after 5, 9, .. steps
      for (int t = 1; t <= 12; ++t) {
        if (t == 2) optimizer.param_groups()[0].options().set_lr(0.08);
        optimizer.zero_grad();
        loss_of({p}, i, t).backward();
        optimizer.step();
        halves.step();
      }
      EXPECT_DOUBLE_EQ(optimizer.param_groups()[0].options().get_lr(), 0.02);
      EXPECT_TRUE(is_all(p, x[static_cast<std::size_t>(i)])) << scheme << ", worker " << i;
    });
  }
}

// --- memory ---

// In other orders in memory than their indices: the numbers are those of the plain order, to the bit where the order of
// sums does not hang on the place (as it does in an all-reduce). Gradients may lie in yet another order, or be expanded.
TEST(Semantics, ChannelsLastAndTransposedParametersAreUpdatedAndMixedRightly) {
  for (const std::string scheme : {"cta", "atc", "all-reduce"}) {
    flock(kWorkers, [&](int i, World& world) {
      const Tensor image = at::sin(at::arange(4 * 3 * 5 * 5, at::kFloat)).view({4, 3, 5, 5});
      const Tensor matrix = at::sin(at::arange(400 * 300, at::kFloat)).view({400, 300});
      const std::vector<Tensor> plain{image.clone().set_requires_grad(true),
                                      matrix.clone().set_requires_grad(true)};
      const std::vector<Tensor> strange{
          image.contiguous(at::MemoryFormat::ChannelsLast).set_requires_grad(true),
          matrix.t().contiguous().t().set_requires_grad(true)};
      ASSERT_FALSE(strange[0].is_contiguous() || strange[1].is_contiguous());
      const Options options{.topology = "base-2", .scheme = scheme};
      Optimizer ours(strange, Adam{.lr = 0.05}, options, world);
      Optimizer reference(plain, Adam{.lr = 0.05}, options, world);
      for (int t = 1; t <= 6; ++t) {
        for (std::size_t k = 0; k < plain.size(); ++k) {
          plain[k].mutable_grad() = plain[k].detach() * (1 + i) - centre(i, t);
          if (t % 3 == 0) plain[k].mutable_grad() = at::full({1}, centre(i, t)).expand(plain[k].sizes());
          strange[k].mutable_grad() =
              t % 3 == 1 ? plain[k].grad().contiguous(strange[k].suggest_memory_format()) : plain[k].grad();
        }
        ours.step();
        reference.step();
      }
      for (std::size_t k = 0; k < plain.size(); ++k) {
        EXPECT_FALSE(strange[k].is_contiguous());
        EXPECT_TRUE(scheme == "all-reduce" ? at::allclose(strange[k].detach(), plain[k].detach(), 1e-5, 1e-6)
                                           : at::equal(strange[k].detach(), plain[k].detach()))
            << scheme << ", worker " << i << ", parameter " << k;
      }
    });
  }
}

TEST(Semantics, ASliceOfOtherMemoryIsRefused) {
  const World world = World::alone();
  EXPECT_EQ(
      refusal<UsageError>(
          [&] { Optimizer(std::vector<Tensor>{at::zeros({4, 4}).slice(1, 0, 2)}, SGD{}, {}, world); }),
      "parameter 0 of group 0 is a strided view of other memory: parameters must be float32, bfloat16 or "
      "float16 on the CPU or a CUDA device and dense in memory (contiguous or channels_last)");
}

TEST(Semantics, AThousandTinyParametersAndEmptyOnesBetweenThem) {
  for (const std::string scheme : {"cta", "atc", "all-reduce"}) {
    flock(kWorkers, [&](int i, World& world) {
      std::vector<Tensor> parameters;
      for (int k = 0; k < 1000; ++k) {
        parameters.push_back(parameter({k % 3}, 1));
        parameters.back().mutable_grad() = at::full({k % 3}, i - 1.0);  // whose mean is 0
      }
      Optimizer optimizer(parameters, SGD{.lr = 0.5}, {.topology = "complete", .scheme = scheme}, world);
      EXPECT_EQ(optimizer.parameter_count(), 999);
      for (int t = 0; t < 3; ++t) optimizer.step();
      const double expected =
          scheme == "cta" ? 1 - 0.5 * (i - 1) : 1;  // under CTA the last step is not yet mixed
      for (const Tensor& p : parameters) EXPECT_TRUE(is_all(p, expected));
    });
  }
}

TEST(Semantics, DoublePrecisionIsRefusedInOneLine) {
  const World world = World::alone();
  const auto expected = [](int group, const std::string& type) {
    return "parameter 0 of group " + std::to_string(group) + " is " + type +
           ": parameters must be float32, bfloat16 or float16 on the CPU or a CUDA device and dense in "
           "memory (contiguous or "
           "channels_last)";
  };
  struct Net : torch::nn::Module {
    Net() { register_parameter("weight", at::ones({2})); }
  } net;
  net.to(at::kDouble);
  EXPECT_EQ(refusal<UsageError>([&] { Optimizer(net, SGD{}, {}, world); }), expected(0, "Double"));
  const auto make = [&](at::ScalarType type) { return std::vector<Tensor>{at::ones({2}, type)}; };
  torch::optim::SGD inner(make(at::kDouble), torch::optim::SGDOptions(0.5));
  EXPECT_THAT(refusal<UsageError>([&] { Optimizer(inner, {}, world); }),
              HasSubstr("is Double: around another optimizer it must be float32"));
  Optimizer optimizer(make(at::kFloat), SGD{}, {}, world);
  EXPECT_EQ(refusal<UsageError>([&] { optimizer.add_param_group({make(at::kDouble)}); }),
            expected(1, "Double"));
  optimizer.step();  // nothing was added
}

}  // namespace
}  // namespace starling
