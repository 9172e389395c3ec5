// The optimizer beside plain loops in fp64 and torch's own optimizers. Workers are threads.
#include "starling/optim/optimizer.h"

#include <ATen/CPUGeneratorImpl.h>

#include "starling/core/failpoint.h"
#include "starling/topology/schedules.h"
#include "tests/mixed.h"
#include "tests/optim/flock.h"
#include "tests/optim/plain.h"

namespace starling {
namespace {

using at::Tensor;
using testing::HasSubstr;

// --- combine-then-adapt against plain loops ---

void check_equation(const std::string& scheme, const std::string& topology, int n, int window) {
  const AccumAdamW rule{.lr = 0.05, .weight_decay = 0.1, .window = window};
  constexpr int kSteps = 12;
  std::vector<double> x(static_cast<std::size_t>(n), 0.5);
  std::vector<Plain> plain(static_cast<std::size_t>(n));
  const Schedule schedule = make_schedule(topology, n);
  for (int t = 1; t <= kSteps; ++t) {
    std::vector<double> g;  // at the worker's own old x
    for (int i = 0; i < n; ++i) g.push_back(x[static_cast<std::size_t>(i)] - centre(i, t));
    if (scheme == "cta") x = mixed(x, schedule.at(t - 1));
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = (1 - rule.lr * rule.weight_decay) * x[i] - rule.lr * plain[i].direction(g[i], rule);
    if (scheme == "atc") x = mixed(x, schedule.at(t - 1));
  }
  flock(n, [&](int i, World& world) {
    const Tensor p = parameter({3, 5}, 0.5);
    Optimizer optimizer({p}, rule, {.topology = topology, .scheme = scheme}, world);
    train({p}, optimizer, i, 1, kSteps + 1);
    EXPECT_TRUE(at::allclose(p.detach(), at::full({3, 5}, x[static_cast<std::size_t>(i)]), 1e-4, 1e-5))
        << scheme << ", " << topology << ", worker " << i;
  });
}

TEST(Optimizer, CombinesBeforeOrAfterItAdapts) {
  for (const std::string scheme : {"cta", "atc"}) {
    check_equation(scheme, "base-2", 3, 4);
    check_equation(scheme, "ring", 4, 1);
    check_equation(scheme, "complete", 3, 3);
    check_equation(scheme, "one-peer-exponential", 4, 8);
  }
  check_equation("cta", "one-peer-exponential-directed", 3, 2);
}

// Returns the workers' consensus after 150 noisy steps towards one place, and their distance.
std::pair<Tensor, double> trained(Wire wire, const char* topology, int one_in = 1) {
  constexpr int kWorkers = 4;
  double end_distance = 0;
  const auto ends = results_of(kWorkers, [&](int i, World& world) -> Tensor {
    at::Generator random = at::make_generator<at::CPUGeneratorImpl>(7);
    const Tensor goal = at::randn({3000}, random), p = parameter({3000});
    random.set_current_seed(static_cast<std::uint64_t>(i) + 100);
    Optimizer optimizer({p}, AdamW{.lr = 0.02}, {.topology = topology, .wire = wire, .one_in = one_in},
                        world);
    for (int t = 1; t <= 150; ++t) {
      p.mutable_grad() = p.detach() - goal + at::randn({3000}, random);
      optimizer.step();
    }
    const double distance = optimizer.consensus_distance();
    if (i == 0) end_distance = distance;
    return p.detach() - goal;
  });
  return {(ends[0] + ends[1] + ends[2] + ends[3]) / kWorkers, end_distance};
}

TEST(Optimizer, ModularCodesTrainAsFp32Does) {
  for (const char* topology : {"base-2", "ring", "complete"}) {
    const auto [wide, wide_apart] = trained(Wire::fp32, topology);
    const double left = wide.square().mean().sqrt().item<double>();
    EXPECT_LT(left, 0.3) << topology;  // from 1
    for (const auto& [wire, factor] : {std::pair{Wire::int8, 1.1}, {Wire::int4, 2.0}}) {
      const auto [narrow, narrow_apart] = trained(wire, topology);
      EXPECT_LT(narrow.square().mean().sqrt().item<double>(), 1.05 * left)
          << topology << " " << name_of(wire);
      EXPECT_LT(narrow_apart, factor * wide_apart) << topology << " " << name_of(wire);
    }
  }
}

// With random-k, workers mix less but learn as much. Their distance grows with the steps between
// two exchanges of a value: at most by that factor.
TEST(Optimizer, RandomKTrainsAsFp32Does) {
  for (const char* topology : {"base-2", "ring", "complete"}) {
    const auto [wide, wide_apart] = trained(Wire::fp32, topology);
    const auto [sparse, sparse_apart] = trained(Wire::fp32, topology, 4);
    EXPECT_LT(sparse.square().mean().sqrt().item<double>(), 1.05 * wide.square().mean().sqrt().item<double>())
        << topology;
    EXPECT_GT(sparse_apart, 1.2 * wide_apart) << topology;
    EXPECT_LT(sparse_apart, 4 * wide_apart) << topology;
  }
}

TEST(Optimizer, MixesByATopologyOfYourOwn) {
  const TopologyFile file(
      "workers = 3\n[[rounds]]\nrows = [[0.5, 0.25, 0.25], [0, 0.75, 0.25], [0.5, 0, 0.5]]\n"
      "[[rounds]]\nedges = [[1, 2, '1/3']]\n");
  check_equation("cta", file.path(), 3, 2);
}

TEST(Optimizer, ManyBlocksAndOddSizesChangeNothing) {
  // 200 parameters of odd sizes, one of them larger than a block.
  flock(2, [&](int i, World& world) {
    std::vector<Tensor> parameters{parameter({150'001}, 1)};
    for (int k = 1; k < 200; ++k) parameters.push_back(parameter({k}, 1));
    Optimizer optimizer(parameters, SGD{.lr = 0.5}, {.topology = "complete"}, world);
    EXPECT_EQ(optimizer.parameter_count(), 150'001 + 199 * 100);
    for (int t = 0; t < 3; ++t) {
      for (const Tensor& p : parameters) p.mutable_grad() = at::full(p.sizes(), i == 0 ? 1.0 : -0.5);
      optimizer.step();
    }
    // x1 = 1 - lr g_i. Each later step takes the mean of both, less lr g_i.
    const double mean = 1 - 0.5 * 0.25, mean2 = mean - 0.5 * 0.25;
    for (const Tensor& p : parameters) {
      EXPECT_TRUE(at::allclose(p.detach(), at::full(p.sizes(), mean2 - 0.5 * (i == 0 ? 1.0 : -0.5))));
    }
  });
}

TEST(Optimizer, EqualGradientsOnTheCompleteGraphKeepWorkersEqual) {
  const auto results = results_of(4, [&](int, World& world) -> Tensor {
    const Tensor p = parameter({1000}, 0.3);
    Optimizer optimizer({p}, AccumAdam{.lr = 0.01, .window = 3}, {.topology = "complete"}, world);
    for (int t = 1; t <= 20; ++t) {
      p.mutable_grad() = p.detach() * centre(0, t);
      optimizer.step();
    }
    return p.detach();
  });
  for (const Tensor& result : results) EXPECT_TRUE(at::equal(result, results.front()));
}

// --- a world of one is the plain optimizer ---

template <class Theirs>
void check_alone(const Rule& rule, const Theirs& make_theirs) {
  const Tensor start = at::randn({7, 11});
  const Tensor ours = start.clone().set_requires_grad(true), theirs = start.clone().set_requires_grad(true);
  const World world = World::alone();
  Optimizer optimizer({ours}, rule, {}, world);
  auto reference = make_theirs(theirs);
  for (int t = 1; t <= 25; ++t) {
    ours.mutable_grad() = ours.detach() - centre(0, t);
    theirs.mutable_grad() = theirs.detach() - centre(0, t);
    optimizer.step();
    reference.step();
  }
  EXPECT_TRUE(at::allclose(ours.detach(), theirs.detach(), 1e-5, 1e-6));
}

TEST(Optimizer, AloneItIsTorchsOwn) {
  using namespace torch::optim;
  check_alone(starling::SGD{.lr = 0.1},
              [](const Tensor& p) { return torch::optim::SGD({p}, SGDOptions(0.1)); });
  check_alone(starling::SGD{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01}, [](const Tensor& p) {
    return torch::optim::SGD({p}, SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
  });
  check_alone(starling::SGD{.lr = 0.1, .momentum = 0.9, .nesterov = true}, [](const Tensor& p) {
    return torch::optim::SGD({p}, SGDOptions(0.1).momentum(0.9).nesterov(true));
  });
  check_alone(starling::Adam{.lr = 0.01, .weight_decay = 0.1},
              [](const Tensor& p) { return torch::optim::Adam({p}, AdamOptions(0.01).weight_decay(0.1)); });
  check_alone(starling::AdamW{.lr = 0.01, .weight_decay = 0.1},
              [](const Tensor& p) { return torch::optim::AdamW({p}, AdamWOptions(0.01).weight_decay(0.1)); });
  check_alone(starling::AccumAdam{.lr = 0.01, .window = 1},
              [](const Tensor& p) { return torch::optim::Adam({p}, AdamOptions(0.01)); });
}

// --- parameter groups, missing gradients, learning rates ---

TEST(Optimizer, GroupsKeepTheirOwnOptionsAndLearningRatesAreReadAtEveryStep) {
  const Tensor a = parameter({4}, 1), b = parameter({4}, 1);
  const World world = World::alone();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<Tensor>{a}, rule_options(SGD{.lr = 0.1}));
  groups.emplace_back(std::vector<Tensor>{b});
  Optimizer optimizer(groups, SGD{.lr = 0.01, .weight_decay = 1}, {}, world);
  a.mutable_grad() = at::ones({4});
  b.mutable_grad() = at::ones({4});
  optimizer.step();
  EXPECT_TRUE(at::allclose(a.detach(), at::full({4}, 0.9)));
  EXPECT_TRUE(at::allclose(b.detach(), at::full({4}, 0.98)));
  optimizer.param_groups()[1].options().set_lr(0.5);
  optimizer.step();
  EXPECT_TRUE(at::allclose(a.detach(), at::full({4}, 0.8)));
  EXPECT_TRUE(at::allclose(b.detach(), at::full({4}, 0.98 - 0.5 * 1.98)));
}

TEST(Optimizer, ParametersStayWhereTheyLieAndPointersAreReadAnew) {
  const World world = World::alone();
  Tensor p = parameter({6}, 1);
  Optimizer optimizer({p}, SGD{.lr = 1}, {}, world);
  const auto version = p.unsafeGetTensorImpl()->version_counter().current_version();
  const void* const where = p.const_data_ptr();
  p.mutable_grad() = at::ones({6});
  optimizer.step();
  EXPECT_EQ(p.const_data_ptr(), where);
  EXPECT_GT(p.unsafeGetTensorImpl()->version_counter().current_version(), version);
  p.set_data(at::full({6}, 10.0));  // as .to() and load_state_dict(assign) do
  optimizer.step();
  EXPECT_TRUE(at::equal(p.detach(), at::full({6}, 9.0)));
}

// --- the start, the average ---

struct Net : torch::nn::Module {
  explicit Net(double value) {
    weight = register_parameter("weight", at::full({8}, value));
    tied = weight;
    register_parameter("frozen", at::full({2}, value), false);
    mean = register_buffer("mean", at::full({4}, value));
    count = register_buffer("count", at::full({}, static_cast<std::int64_t>(value), at::kLong));
  }
  Tensor weight, tied, mean, count;
};

TEST(Optimizer, RankZerosParametersAndBuffersReachEveryWorker) {
  flock(3, [](int i, World& world) {
    Net net(i + 5);
    Optimizer optimizer(net, SGD{.lr = 1}, {}, world);
    EXPECT_TRUE(at::equal(net.weight.detach(), at::full({8}, 5.0)));
    EXPECT_TRUE(at::equal(net.mean, at::full({4}, 5.0)));
    EXPECT_EQ(net.count.item<std::int64_t>(), 5);
    EXPECT_EQ(optimizer.parameter_count(), 8);
  });
}

TEST(Consensus, AveragesParametersAndBuffersAndRestoresThem) {
  flock(3, [](int i, World& world) {
    Net net(1);
    Optimizer optimizer(net, SGD{.lr = 1}, {.topology = "ring"}, world);
    net.weight.mutable_grad() = at::full({8}, -3.0 * i);
    optimizer.step();
    net.mean.fill_(i * 3);
    net.count.fill_(10 + i);
    const Tensor own = net.weight.detach().clone();
    {
      const Consensus average(optimizer);
      EXPECT_EQ(average.workers(), 3);
      EXPECT_TRUE(at::allclose(net.weight.detach(), at::full({8}, 4.0)));  // 1 + mean(0, 3, 6)
      EXPECT_TRUE(at::allclose(net.mean, at::full({4}, 3.0)));
      EXPECT_EQ(net.count.item<std::int64_t>(), 12);
      EXPECT_NEAR(average.distance(), std::sqrt((9.0 + 0 + 9.0) / 3), 1e-5);
    }
    EXPECT_TRUE(at::equal(net.weight.detach(), own));
    EXPECT_TRUE(at::equal(net.mean, at::full({4}, 3.0 * i)));
    EXPECT_EQ(net.count.item<std::int64_t>(), 10 + i);
    EXPECT_NEAR(optimizer.consensus_distance(), std::sqrt(6.0), 1e-5);
    Consensus(optimizer).keep();
    EXPECT_TRUE(at::allclose(net.weight.detach(), at::full({8}, 4.0)));
  });
}

TEST(Optimizer, SeveralOptimizersOfOneWorldDoNotMix) {
  flock(2, [](int i, World& world) {
    const Tensor a = parameter({10}), b = parameter({20});
    Optimizer first({a}, SGD{.lr = 1}, {.topology = "complete"}, world);
    Optimizer second({b}, SGD{.lr = 1}, {.topology = "complete"}, world);
    for (int t = 0; t < 2; ++t) {
      a.mutable_grad() = at::full({10}, i == 0 ? 2.0 : 0.0);
      b.mutable_grad() = at::full({20}, i == 0 ? 0.0 : 4.0);
      first.step();
      second.step();
    }
    EXPECT_TRUE(at::allclose(a.detach(), at::full({10}, i == 0 ? -3.0 : -1.0)));
    EXPECT_TRUE(at::allclose(b.detach(), at::full({20}, i == 0 ? -2.0 : -6.0)));
  });
}

// --- what is refused ---

TEST(Optimizer, NamesOptionsThatDifferWithBothValues) {
  const std::string said = refusal<UsageError>([] {
    flock(2, [](int i, World& world) {
      Optimizer optimizer({parameter({10})}, SGD{}, {.topology = i == 0 ? "ring" : "complete"}, world);
    });
  });
  EXPECT_EQ(
      said,
      "the workers differ in topology: ring at worker 0, complete at worker 1; it must be the same on all");
  EXPECT_EQ(refusal<UsageError>([] {
              flock(2, [](int i, World& world) {
                Optimizer optimizer({parameter({10})}, SGD{}, {.wire = i == 0 ? Wire::fp32 : Wire::fp16},
                                    world);
              });
            }),
            "the workers differ in wire: fp32 at worker 0, fp16 at worker 1; it must be the same on all");
  EXPECT_EQ(refusal<UsageError>([] {
              flock(2, [](int i, World& world) {
                Optimizer optimizer({parameter({4})}, SGD{}, {.one_in = 2 + i}, world);
              });
            }),
            "the workers differ in one_in: 2 at worker 0, 3 at worker 1; it must be the same on all");
  // The same name, but other rounds. So it is too if files of one name differ.
  EXPECT_THAT(
      refusal<UsageError>([] {
        flock(4, [](int i, World& world) {
          world.local_size = i == 3 ? 2 : 1;
          Optimizer optimizer({parameter({10})}, SGD{}, {.topology = "alternating-exp-ring"}, world);
        });
      }),
      testing::MatchesRegex("the workers differ in rounds of the topology: 4 with checksum [0-9a-f]+ at "
                            "worker 0, 2 with checksum [0-9a-f]+ at worker 3; it must be the same on all"));
  EXPECT_THAT(
      refusal<UsageError>([] {
        flock(2, [](int i, World& world) { Optimizer optimizer({parameter({10 + i})}, SGD{}, {}, world); });
      }),
      HasSubstr("parameter 0 of group 0: Float 10 with strides 1 at worker 0, Float 11 with strides "
                "1 at worker 1"));
}

TEST(Optimizer, AFailpointMakesOneValueJump) {
  const std::shared_ptr<void> disarmed(nullptr, [](void*) { arm_failpoints("", 0, 0); });
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(c10::toString(type));
    arm_failpoints("optimizer:2:0:jump=1024", 0, 0);
    const Tensor x = parameter({4}, 1, type), y = parameter({3, 2}, 1, type);
    Optimizer optimizer({x, y}, SGD{.lr = 0.1}, {}, World::alone());
    const Tensor expected = at::ones({3, 2}, type);
    for (int step = 1; step <= 3; ++step) {
      for (const Tensor& p : {x, y}) p.mutable_grad() = at::zeros_like(p);
      optimizer.step();
      if (step == 2) expected[2][1].fill_(1024);
      EXPECT_TRUE(at::equal(x.detach(), at::ones({4}, type))) << step << ": " << x;
      EXPECT_TRUE(at::equal(y.detach(), expected)) << step << ": " << y;
    }
  }
}

TEST(Optimizer, RefusesInOneLine) {
  const World world = World::alone();
  const auto make = [&](Tensor p, Rule rule = SGD{}, Options options = {}) {
    return refusal<UsageError>([&] { Optimizer optimizer({p}, rule, options, world); });
  };
  EXPECT_THAT(make(at::zeros({0})), HasSubstr("no parameter to train"));
  EXPECT_THAT(make(at::zeros({2}), SGD{}, {.scheme = "gossip"}), HasSubstr("scheme \"gossip\" is unknown: "));
  EXPECT_THAT(make(at::zeros({2}), SGD{}, {.topology = "rnig"}), HasSubstr("rnig"));
  EXPECT_THAT(make(at::zeros({2}), AdamW{.lr = -1}), HasSubstr("lr"));
  const std::string must =
      ": parameters must be float32, bfloat16 or float16 on the CPU or a CUDA device and dense in memory "
      "(contiguous or channels_last)";
  EXPECT_EQ(make(Tensor()), "parameter 0 of group 0 is undefined" + must);
  EXPECT_EQ(make(parameter({2}) * 2), "parameter 0 of group 0 is computed from other tensors" + must);
  EXPECT_EQ(make(at::empty({2}, at::kMeta)), "parameter 0 of group 0 is on meta" + must);
  EXPECT_EQ(make(at::zeros({4, 4}).slice(1, 0, 2)),
            "parameter 0 of group 0 is a strided view of other memory" + must);
  EXPECT_EQ(make(at::_neg_view(at::zeros({2}))),
            "parameter 0 of group 0 is a view whose values are negated when they are read" + must);
  std::vector<torch::optim::OptimizerParamGroup> foreign;
  foreign.emplace_back(std::vector<Tensor>{parameter({2})}, std::make_unique<torch::optim::SGDOptions>(0.1));
  EXPECT_EQ(refusal<UsageError>([&] { Optimizer optimizer(foreign, SGD{}, {}, world); }),
            "a parameter group has no starling rule: make it as OptimizerParamGroup(parameters, "
            "starling::rule_options(starling::AdamW{...})), or without options");
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<Tensor>{parameter({2})}, rule_options(Adam{}));
  EXPECT_EQ(refusal<UsageError>([&] { Optimizer optimizer(groups, SGD{}, {}, world); }),
            "a parameter group has the rule Adam, the optimizer SGD: groups may differ in options only");
}

}  // namespace
}  // namespace starling
