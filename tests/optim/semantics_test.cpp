// The semantics that training loops expect, beside plain loops in double or torch's own optimizers.
// SchemeEquations and SchemeContract have those of all schemes. Workers are threads.
#include "tests/optim/every_scheme.h"

namespace starling {
namespace {

using at::Tensor;
using testing::HasSubstr;

// The loss with gradient p - centre(i, t), of all parameters that require one.
Tensor loss_of(const std::vector<Tensor>& parameters, int i, int t) {
  Tensor loss = at::zeros({});
  for (const Tensor& p : parameters) {
    if (p.requires_grad()) loss = loss + (p - centre(i, t)).square().sum() * 0.5;
  }
  return loss;
}

// --- gradients ---

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
    unused.detach().fill_(i == 0 ? 4 : 2);                    // the wire block of this step is already sent
    step();
    EXPECT_TRUE(at::equal(unused.detach(), at::full({10}, i == 0 ? 4.0 : 2.0)));
    step();
    EXPECT_TRUE(at::equal(unused.detach(), at::full({10}, 3.0)));
  });
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
    Optimizer reference({alone}, AdamW{.lr = 0.05}, {.topology = "complete"}, world);
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

// The optimizer takes a module's parameters that require a gradient. Later ones are added.
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

TEST(Semantics, AnAddedGroupKeepsItsOwnOptions) {
  const World world = World::alone();
  const Tensor early = parameter({2}, 1), late = parameter({2}, 1);
  Optimizer optimizer({early}, SGD{.lr = 0.1}, {}, world);
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
  Optimizer optimizer({parameter({2})}, SGD{}, {}, world);
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

// This holds for workers that are not neighbours too, and beyond the timeout to meet.
TEST(Semantics, AnAverageWaitsForLateWorkers) {
  virtual_flock(4, [](int i, World& world, VirtualTime& time) {
    world.timeouts.meet = std::chrono::seconds(5);
    Optimizer optimizer({parameter({100}, i)}, SGD{.lr = 0.1}, {.topology = "ring"}, world);
    if (i == 3) time.sleep(std::chrono::seconds(7));
    EXPECT_EQ(Consensus(optimizer).workers(), 4);
  });
}

// --- memory ---

// As an encoder's and a decoder's, of which one was given the other's data.
TEST(Semantics, ParametersThatShareMemoryAreRefused) {
  const World world = World::alone();
  const Tensor all = at::zeros({6}), again = all.detach();
  const auto part = [&](std::int64_t begin, std::int64_t length) { return all.narrow(0, begin, length); };
  const std::string shares = "parameter 1 of group 0 shares memory with parameter 0 of group 0: ";
  const std::tuple<Tensor, Tensor, std::string> cases[] = {{all, again, shares},
                                                           {part(0, 4), part(3, 3), shares},
                                                           {part(3, 3), part(0, 4), shares},
                                                           {all, part(5, 1), shares},
                                                           {part(0, 3), part(3, 3), "accepted"}};
  for (const auto& [one, other, text] : cases)
    EXPECT_THAT(refusal<UsageError>([&] { Optimizer({one, other}, SGD{}, {}, world); }),
                testing::StartsWith(text));
  Optimizer optimizer({parameter({2}), all}, SGD{}, {}, world);
  optimizer.add_param_group({{again}});
  EXPECT_EQ(refusal<UsageError>([&] { optimizer.step(); }),
            "parameter 0 of group 1 shares memory with parameter 1 of group 0: make them one parameter");
}

// Its state, and what neighbours have of it, lie in its memory order.
TEST(Semantics, AParameterKeepsItsSizesAndMemoryOrder) {
  const auto images = [](at::IntArrayRef sizes) {
    return at::ones(sizes).contiguous(at::MemoryFormat::ChannelsLast);
  };
  const std::string must = ": its sizes and memory order must stay, so change them before";
  const std::tuple<Tensor, Tensor, std::string> cases[] = {
      {at::ones({4}), at::ones({2}), "[4] with strides 1 when the optimizer was made and is [2]"},
      {at::ones({4}), at::ones({8}), "[4] with strides 1 when the optimizer was made and is [8]"},
      {at::ones({2, 3}), at::ones({3, 2}), "[2, 3] with strides 3,1 when the optimizer was made and is"},
      {at::ones({2, 3}), at::ones({3, 2}).t(), "and is [2, 3] with strides 1,2 now" + must},
      {at::ones({4, 3, 2, 2}), images({4, 3, 2, 2}), "and is [4, 3, 2, 2] with strides 12,1,6,3 now" + must},
      {at::ones({4, 3, 1, 1}), images({4, 3, 1, 1}), "accepted"},  // in the same order
      {at::ones({2, 3}), at::full({2, 3}, 7.0), "accepted"}};
  for (const std::string scheme : {"cta", "all-reduce", "ad-psgd"}) {
    for (const auto& [before, after, text] : cases) {
      Tensor p = before.clone().set_requires_grad(true);
      Optimizer optimizer({p}, SGD{.lr = 0.1, .momentum = 0.9}, {.topology = "ring", .scheme = scheme},
                          World::alone());
      const auto step = [&] {
        p.mutable_grad() = at::ones_like(p);
        optimizer.step();
      };
      step();
      const Tensor mine = p.detach();
      p.set_data(after.clone());
      const std::function<void()> calls[] = {step, [&] { optimizer.state(); },
                                             [&] { optimizer.begin_again(); },
                                             [&] { const Consensus average(optimizer); }};
      for (const auto& call : calls) EXPECT_THAT(refusal<UsageError>(call), HasSubstr(text)) << scheme;
      if (text == "accepted") continue;
      p.set_data(mine);
      step();
      EXPECT_TRUE(is_all(p, 1 - 0.1 * (1 + 1.9))) << scheme << p;
    }
  }
}

// The first of two blocks would be on its way already.
TEST(Semantics, AStepThatIsRefusedHasBegunNothing) {
  const auto ends = [](bool refused) {
    return results_of(2, [&](int i, World& world) {
      const Tensor large = parameter({70'000}, 1), small = parameter({5}, 1);
      Optimizer optimizer({large, small}, SGD{.lr = 0.1}, {.topology = "complete"}, world);
      EXPECT_GT(optimizer.block_sizes().size(), 1U);
      for (int t = 0; t < 6; ++t) {
        for (const Tensor& p : {large, small}) p.mutable_grad() = p.detach() - centre(i, t);
        if (refused && t == 3) {
          const Tensor good = small.grad();
          small.mutable_grad() = good.to(at::kDouble);
          EXPECT_THAT(refusal<UsageError>([&] { optimizer.step(); }),
                      HasSubstr("a gradient is Double [5] for a parameter Float [5]"));
          small.mutable_grad() = good;
        }
        optimizer.step();
      }
      expect_undisturbed(optimizer);
      return at::cat({large.detach(), small.detach()});
    });
  };
  const auto with = ends(true), without = ends(false);
  for (std::size_t i = 0; i < with.size(); ++i) EXPECT_TRUE(at::equal(with[i], without[i])) << i;
}

TEST(Semantics, DoublePrecisionIsRefusedInOneLine) {
  const World world = World::alone();
  const auto expected = [](int group, const std::string& type) {
    return "parameter 0 of group " + std::to_string(group) + " is " + type +
           ": parameters must be float32, bfloat16 or float16 on the CPU or a CUDA device and dense in "
           "memory (contiguous or channels_last)";
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
