// How workers begin, and what they must have alike. Workers are threads.
#include "tests/optim/every_scheme.h"

namespace starling {
namespace {

using at::Tensor;
using testing::HasSubstr;
using Groups = std::vector<torch::optim::OptimizerParamGroup>;

struct Halves : torch::nn::Module {
  explicit Halves(double value) {
    trained = register_parameter("trained", at::full({4}, value));
    frozen = register_parameter("frozen", at::full({3}, value), false);
    count = register_buffer("count", at::full({2}, static_cast<std::int64_t>(value), at::kLong));
  }
  Tensor trained, frozen, count;
};

TEST(Gathering, SpreadsEveryTypeAndTellsEveryText) {
  for (const int n : {1, 2, 3}) {
    flock(n, [&](int i, World& world) {
      const Tensor real = parameter({3, 5}, 1.5 + i), strided = at::full({4, 6}, 2.5 + i).t(),
                   counter = at::full({}, 7 - 9 * i, at::kLong), mask = at::full({3}, i == 0, at::kBool),
                   half = at::full({7}, 0.25 + i, at::kBFloat16), none = at::zeros({0}),
                   large = at::full({7 << 20}, 3.0 + i);  // more than one pack
      Gathering all(world, "test");
      all.spread({real, none, counter, mask, strided, large, half});
      EXPECT_TRUE(is_all(real, 1.5) && is_all(strided, 2.5) && is_all(half, 0.25) && is_all(large, 3));
      EXPECT_TRUE(mask.all().item<bool>() && real.requires_grad());
      EXPECT_EQ(counter.item<std::int64_t>(), 7);
      const auto text = [](int of) { return std::string(static_cast<std::size_t>(3 * of), '\0'); };
      const std::vector<std::string> texts = all.texts(text(i));
      ASSERT_EQ(std::ssize(texts), n);
      for (int of = 0; of < n; ++of) EXPECT_EQ(texts[static_cast<std::size_t>(of)], text(of));
    });
  }
}

TEST(Gathering, NobodyFillsTheMemoryOfAll) {
  flock(2, [](int i, World& world) {
    Gathering all(world, "test");
    if (i == 1) {
      std::int64_t lengths[]{0, std::int64_t{1} << 62};
      return all.maximum(lengths);
    }
    EXPECT_THAT(refusal([&] { all.texts("mine"); }),
                HasSubstr("worker 1 says a text of 4611686018427387904 bytes"));
  });
}

TEST(Gathering, WithoutEverybodyIsAnErrorThatNamesTheMissing) {
  flock(kWorkers, [](int i, World& world) {
    std::optional<Gathering> all(std::in_place, world, "one leaves");
    all->wait();
    if (i == 2) return all.reset();
    EXPECT_EQ(refusal<Error>([&] { all->wait(); }),
              "worker 2 left, died or fell silent while all workers had to be together");
  });
  flock(kWorkers, [](int i, World& world) {
    world.timeouts.meet = std::chrono::milliseconds(300);
    if (i == 2) return;
    EXPECT_THAT(refusal<Error>([&] { Gathering all(world, "one is not there"); }), HasSubstr("worker"));
  });
}

// Gloo asks nobody for the token.
TEST(Start, OnlySchemesThatSumGradientsMakeCollectives) {
  for (const SchemeInfo* const info : schemes()) {
    SCOPED_TRACE(info->name);
    flock(2, [&](int i, World& world) {
      world.make_collectives = [](const World&, const std::string&, int) -> std::unique_ptr<Collectives> {
        throw Error("collectives are made");
      };
      const Tensor x = parameter({4}, i), buffer = at::full({2}, i);
      const auto start = [&] {
        Optimizer optimizer(Groups{{std::vector<Tensor>{x}}}, SGD{}, options_of(*info), world, {buffer});
        nobody_leaves_yet(optimizer);
      };
      if (info->traits.path == Path::gradients) {
        EXPECT_EQ(refusal<Error>(start), "collectives are made");
      } else {
        start();
      }
      EXPECT_TRUE(is_all(x, 0) && is_all(buffer, 0));
      EXPECT_EQ(average({x}, world), 2);
    });
  }
}

TEST(Start, FrozenParametersAreRankZerosAndAreNotSentAgain) {
  flock(kWorkers, [](int i, World& world) {
    const auto check = [&](Halves& net, Optimizer& optimizer) {
      EXPECT_TRUE(is_all(net.frozen, 5));
      EXPECT_EQ(optimizer.parameter_count(), 4);
      net.frozen.fill_(i);
      optimizer.step();
      const Consensus average(optimizer);
      EXPECT_TRUE(is_all(net.frozen, i));
    };
    Halves ruled(5 + i), wrapped(5 + i), listed(5 + i);
    Optimizer with_rule(ruled, SGD{}, {}, world);
    check(ruled, with_rule);
    torch::optim::SGD inner({wrapped.trained}, 0.1);
    Optimizer around(wrapped, inner, {}, world);
    check(wrapped, around);
    Optimizer of_lists(Groups{{std::vector<Tensor>{listed.trained}}}, SGD{}, {}, world, {}, {listed.frozen});
    check(listed, of_lists);
  });
}

// All workers get the same error, before anything is sent.
TEST(Start, BuffersAndFrozenParametersThatDifferAreNamed) {
  const Tensor floats = at::full({4}, 1.5), ints = at::full({4}, 1, at::kInt), wide = at::zeros({2, 3}),
               high = at::zeros({3, 2});
  struct Case {
    std::vector<Tensor> first, other;
    std::string text;
  };
  const std::vector<Case> cases{{{floats}, {ints}, "buffer 0: Float 4 at worker 0, Int 4 at worker 1"},
                                {{wide}, {high}, "buffer 0: Float 2x3 at worker 0, Float 3x2 at worker 1"},
                                {{floats, wide}, {floats}, "number of buffers: 2 at worker 0, 1 at worker 1"},
                                {{}, {floats}, "number of buffers: 0 at worker 0, 1 at worker 1"}};
  flock(kWorkers, [&](int i, World& world) {
    for (const Case& one : cases) {
      const Groups groups{{std::vector<Tensor>{parameter({4})}}};
      std::vector<Tensor> mine;
      for (const Tensor& tensor : i == 0 ? one.first : one.other) mine.push_back(tensor.clone());
      EXPECT_THAT(refusal<UsageError>([&] { Optimizer optimizer(groups, SGD{}, {}, world, mine); }),
                  HasSubstr("the workers differ in " + one.text));
      EXPECT_THAT(refusal<UsageError>([&] { Optimizer optimizer(groups, SGD{}, {}, world, {}, mine); }),
                  HasSubstr("the workers differ in "));
      for (std::size_t k = 0; k < mine.size(); ++k)
        EXPECT_TRUE(at::equal(mine[k], (i == 0 ? one.first : one.other)[k]));
    }
  });
}

TEST(Start, ABufferWithoutAMeanIsRefusedByItsNumber) {
  const Groups groups{{std::vector<Tensor>{parameter({4})}}};
  EXPECT_THAT(refusal<UsageError>([&] {
                Optimizer optimizer(groups, SGD{}, {}, World::alone(),
                                    {at::zeros({1}), at::zeros({1}).expand({3})});
              }),
              HasSubstr("buffer 1 is expanded: values share memory"));
}

TEST(Start, WithoutValuesThereIsNothingToTrain) {
  const auto make = [](std::vector<Tensor> parameters) {
    return refusal<UsageError>([&] { Optimizer optimizer(parameters, SGD{}, {}, World::alone()); });
  };
  EXPECT_EQ(make({}), "there is no parameter to train: at least one must require a gradient");
  EXPECT_EQ(make({parameter({0}), parameter({3, 0})}), "there is no parameter to train: all have the size 0");
}

TEST(Start, ParametersReplacedInAGroupAreRefused) {
  const Tensor x = parameter({4});
  Optimizer optimizer({x}, SGD{}, {}, World::alone());
  optimizer.step();
  optimizer.param_groups()[0].params()[0] = parameter({4});
  EXPECT_THAT(refusal<UsageError>([&] { optimizer.step(); }),
              HasSubstr("parameter group 0 has other parameters than it was made with"));
}

TEST(Start, AGroupThatIsRemovedIsRefused) {
  for (const bool around : {false, true}) {
    const Tensor x = parameter({4}), y = parameter({4});
    const std::vector<torch::optim::OptimizerParamGroup> groups{{std::vector<Tensor>{x}},
                                                                {std::vector<Tensor>{y}}};
    torch::optim::SGD inner(groups, torch::optim::SGDOptions(0.1));
    const auto optimizer = around ? std::make_unique<Optimizer>(inner, Options{}, World::alone())
                                  : std::make_unique<Optimizer>(groups, SGD{}, Options{}, World::alone());
    optimizer->step();
    (around ? static_cast<torch::optim::Optimizer&>(inner) : *optimizer).param_groups().pop_back();
    EXPECT_THAT(refusal<UsageError>([&] { optimizer->step(); }),
                HasSubstr("parameter group 1 is gone, which the optimizer was made with"));
  }
}

}  // namespace
}  // namespace starling
