// Parameters in bf16 and fp16: their fp32 masters in the optimizer, in averages and in files.
// Workers are threads.
#include "starling/checkpoint/consensus.h"
#include "starling/optim/blocks.h"
#include "starling/optim/checkpoint.h"
#include "starling/optim/pass.h"
#include "starling/optim/rule_step.h"
#include "starling/optim/state_file.h"
#include "tests/checkpoint/folder.h"
#include "tests/optim/flock.h"

namespace starling {
namespace {

using at::Tensor;
using testing::HasSubstr;

constexpr at::ScalarType kNarrow[] = {at::kBFloat16, at::kHalf};

std::vector<float> values_of(const Tensor& tensor) {  // in memory order
  const Tensor wide = at::empty_like(tensor, at::kFloat).copy_(tensor.detach());
  return {wide.const_data_ptr<float>(), wide.const_data_ptr<float>() + wide.numel()};
}

Tensor master(const Optimizer& optimizer, const std::string& name = "0.0") {
  return optimizer.state().tensors.at("master." + name).contiguous().view({-1});
}

// --- the step ---

// A model of all three types. Segments begin and end within blocks, and one is channels-last.
std::vector<Tensor> mixed_model() {
  at::manual_seed(5);
  std::vector<Tensor> all{
      at::randn({66'001}).to(at::kBFloat16),
      at::randn({33}),
      at::randn({5'003}).to(at::kHalf),
      at::randn({4, 3, 5, 5}).to(at::kBFloat16).contiguous(at::MemoryFormat::ChannelsLast),
      at::randn({3}).to(at::kHalf),
      at::randn({1'000})};
  for (Tensor& p : all) p.set_requires_grad(true);
  return all;
}

// The kernel's formula on a float x, one element at a time.
void plain_step(const kernels::Step& step, float& x, float g, float* state, std::size_t n) {
  std::visit(
      [&]<class Formula>(const Formula& rule) {
        if constexpr (Formula::kStates == 0) x = rule(x, x, g);
        if constexpr (Formula::kStates == 1) x = rule(x, x, g, state[0]);
        if constexpr (Formula::kStates == 2) x = rule(x, x, g, state[0], state[n]);
        if constexpr (Formula::kStates == 3) x = rule(x, x, g, state[0], state[n], state[2 * n]);
      },
      step);
}

TEST(Master, FiftyStepsOfEveryRuleAreThoseOfPlainLoops) {
  const Rule rules[] = {SGD{.lr = 0.01, .weight_decay = 0.1},
                        SGD{.lr = 0.01, .momentum = 0.9, .nesterov = true},
                        Adam{.lr = 0.003, .weight_decay = 0.1},
                        AdamW{.lr = 0.003},
                        AccumAdam{.lr = 0.003, .weight_decay = 0.1, .window = 3},
                        AccumAdamW{.lr = 0.003, .window = 4}};
  for (const Rule& rule : rules) {
    const std::vector<Tensor> model = mixed_model();
    std::vector<std::vector<float>> x, states;
    for (const Tensor& p : model) {
      x.push_back(values_of(p));
      states.emplace_back(3 * x.back().size());
    }
    Optimizer optimizer(model, rule, {}, World::alone());
    for (int t = 1; t <= 50; ++t) {
      for (std::size_t k = 0; k < model.size(); ++k) {
        const Tensor& p = model[k];
        p.mutable_grad() = p.detach() * 0.5 - centre(0, t);
        const std::vector<float> g = values_of(p.grad());
        const kernels::Step step = rule_step(rule, t);
        for (std::size_t i = 0; i < g.size(); ++i) plain_step(step, x[k][i], g[i], &states[k][i], g.size());
      }
      optimizer.step();
    }
    for (std::size_t k = 0; k < model.size(); ++k) {
      Tensor want = at::empty_like(model[k], at::kFloat);
      std::copy(x[k].begin(), x[k].end(), want.mutable_data_ptr<float>());
      EXPECT_TRUE(at::equal(model[k].detach(), want.to(model[k].scalar_type()))) << rule_name(rule) << k;
      if (model[k].scalar_type() == at::kFloat) continue;
      EXPECT_TRUE(at::equal(master(optimizer, "0." + std::to_string(k)), want.contiguous().view({-1})))
          << rule_name(rule) << k;
    }
  }
}

// Workers differ, and then only mix. The sum of the masters stays. With the wire fp32 the masters
// agree far below the last bit of the parameters.
TEST(Master, TheSumOfTheMastersIsKeptWhateverTheWire) {
  constexpr int kWorkers = 3;
  for (const at::ScalarType type : kNarrow) {
    for (const Wire wire : {Wire::fp32, Wire::bf16, Wire::fp16, Wire::int8}) {
      std::vector<Tensor> before(kWorkers), after(kWorkers);
      flock(kWorkers, [&](int i, World& world) {
        const Tensor p = parameter({300}, 0.5, type);
        Optimizer optimizer({p}, SGD{.lr = 0.1}, {.topology = "ring", .wire = wire}, world);
        for (int t = 1; t <= 60; ++t) {
          p.mutable_grad() = at::full({300}, t <= 5 ? centre(i, t) : 0, type);
          optimizer.step();
          if (t == 5) before[static_cast<std::size_t>(i)] = master(optimizer);
        }
        after[static_cast<std::size_t>(i)] = master(optimizer);
      });
      const Tensor sum = before[0] + before[1] + before[2], now = after[0] + after[1] + after[2];
      EXPECT_LT((sum - now).abs().max().item<double>(), 2e-6) << name_of(wire);
      EXPECT_GT((before[0] - before[1]).abs().min().item<double>(), 1e-2);
      const double difference = (after[0] - after[1]).abs().max().item<double>();
      EXPECT_LT(difference, wire == Wire::fp32 ? 1e-6 : 2e-2) << name_of(wire);
    }
  }
}

// Each step is too small to move the parameter.
TEST(Master, KeepsWhatTheParameterCannotHold) {
  for (const at::ScalarType type : kNarrow) {
    const Tensor p = parameter({10}, 1, type);
    Optimizer optimizer({p}, SGD{.lr = 1e-4}, {}, World::alone());
    for (int t = 0; t < 1000; ++t) {
      p.mutable_grad() = at::ones({10}, type);
      optimizer.step();
    }
    EXPECT_NEAR(p.detach().max().item<double>(), 0.9, 2e-3);
  }
}

// --- what users do to parameters and gradients ---

// A change by the user reaches the neighbours, as that of an fp32 parameter does.
TEST(Master, AChangeByOneWorkerIsMixed) {
  flock(2, [&](int i, World& world) {
    const Tensor p = parameter({10}, 1, at::kBFloat16), q = parameter({10}, 1);
    Optimizer narrow({p}, SGD{}, {.topology = "complete"}, world);
    Optimizer wide({q}, SGD{}, {.topology = "complete"}, world);
    const c10::AutoGradMode no_gradient(false);
    for (int t = 0; t < 4; ++t) {
      if (t == 1 && i == 0) p.fill_(3), q.fill_(3);
      narrow.step(), wide.step();
      EXPECT_TRUE(at::equal(p.to(at::kFloat), q)) << t;
    }
    EXPECT_TRUE(at::equal(q, at::full({10}, 2.0)));
  });
}

// In bf16 256 + 1 is 256.
TEST(Master, AllReduceSumsNarrowGradientsInFp32) {
  for (const bool by_hand : {true, false}) {
    flock(3, [&](int i, World& world) {
      const Tensor p = parameter({90'000}, 0, at::kBFloat16), q = parameter({4}),
                   r = parameter({5'000}, 0, at::kHalf);
      Optimizer optimizer({p, q, r}, SGD{.lr = 1}, {.scheme = "all-reduce"}, world);
      const double slope = i == 0 ? 256 : 1;
      if (by_hand) {
        for (const Tensor& each : {p, q, r}) each.mutable_grad() = at::full_like(each.detach(), slope);
      } else {
        ((p * slope).sum() + (r * slope).sum() + (q * slope).sum()).backward();
      }
      optimizer.step();
      for (const Tensor& each : {p, q, r}) {
        EXPECT_TRUE(at::equal(each.grad(), at::full_like(each.detach(), 86)));
        EXPECT_TRUE(at::equal(each.detach(), at::full_like(each.detach(), -86)));
      }
    });
  }
}

TEST(Master, AGroupMayBeAddedInMidRun) {
  flock(3, [](int i, World& world) {
    const Tensor p = parameter({10}), q = parameter({10}, i, at::kHalf);
    Optimizer optimizer({p}, SGD{.lr = 0.5}, {.topology = "complete"}, world);
    optimizer.add_param_group({std::vector<Tensor>{q}});
    EXPECT_TRUE(at::equal(master(optimizer, "1.0"), at::full({10}, static_cast<double>(i))));
    for (int t = 0; t < 2; ++t) {
      q.mutable_grad() = at::full({10}, t == 0 ? i : 0, at::kHalf);
      optimizer.step();
    }
    EXPECT_TRUE(at::allclose(master(optimizer, "1.0"), at::full({10}, -0.5)));  // from worker 0's value
  });
}

// --- averages and files ---

TEST(Master, ConsensusIsTheMeanOfTheMastersAndGivesThemBack) {
  const auto kept = results_of(3, [&](int i, World& world) -> Tensor {
    const Tensor p = parameter({90'000}, 1, at::kBFloat16), q = parameter({4}, 1);
    Optimizer optimizer({p, q}, SGD{.lr = 1}, {.topology = "ring"}, world);
    // 1 + (0, 3, 6) / 1024: of these bf16 holds only 1, and 1 + 8 / 1024 above
    p.mutable_grad() = at::full({90'000}, -3.0 / 1024 * i, at::kBFloat16);
    optimizer.step();
    const Tensor own = p.detach().clone(), mine = master(optimizer);
    EXPECT_TRUE(at::equal(mine, at::full({90'000}, 1 + 3.0 / 1024 * i)));
    {
      const Consensus average(optimizer);
      EXPECT_EQ(average.workers(), 3);
      EXPECT_TRUE(at::allclose(master(optimizer), at::full({90'000}, 1 + 3.0 / 1024), 0, 1e-7));
      EXPECT_TRUE(at::equal(p.detach(), at::ones({90'000}, at::kBFloat16)));
      EXPECT_NEAR(average.distance(), 3.0 / 1024 * std::sqrt(2.0 / 3), 1e-5);
    }
    EXPECT_TRUE(at::equal(p.detach(), own));
    EXPECT_TRUE(at::equal(master(optimizer), mine));
    Consensus(optimizer).keep();
    EXPECT_NEAR(optimizer.consensus_distance(), 0, 1e-7);
    return master(optimizer);
  });
  for (const Tensor& each : kept) EXPECT_TRUE(at::equal(each, kept.front()));
  EXPECT_TRUE(at::allclose(kept.front(), at::full({90'000}, 1 + 3.0 / 1024), 0, 1e-7));
}

// The average includes changes since the last step. Afterwards the worker has them again.
TEST(Master, ConsensusIncludesChanges) {
  flock(2, [&](int i, World& world) {
    const Tensor p = parameter({10}, 1, at::kHalf);
    Optimizer optimizer({p}, SGD{}, {.topology = "complete"}, world);
    optimizer.step();
    const c10::AutoGradMode no_gradient(false);
    p.fill_(i == 0 ? 2 : 5);
    {
      const Consensus average(optimizer);
      EXPECT_TRUE(at::equal(p, at::full({10}, 3.5, at::kHalf)));
    }
    EXPECT_TRUE(at::equal(p, at::full({10}, i == 0 ? 2 : 5, at::kHalf)));
    EXPECT_TRUE(at::equal(master(optimizer), p.to(at::kFloat)));
  });
}

TEST(Master, TheConsensusOfACheckpointIsTheMeanOfTheMasters) {
  const Folder folder;
  struct Net : torch::nn::Module {
    Net() {
      weight = register_parameter("weight", at::ones({4}, at::kBFloat16));
      mean = register_buffer("mean", at::zeros({2}, at::kHalf));
    }
    Tensor weight, mean;
  };
  flock(3, [&](int i, World& world) {
    Net net;
    Optimizer optimizer(net, SGD{.lr = 1}, {}, world);
    net.weight.mutable_grad() = at::full({4}, -3.0 / 1024 * i, at::kBFloat16);
    optimizer.step();
    net.mean.fill_(i);
    save_checkpoint(optimizer, folder.path, {.step = 1});
  });
  write_consensus(AverageModel(Checkpoint(folder.path), LogLines().log()), folder / "mean");
  const SafetensorsReader file(folder / "mean");
  ASSERT_EQ(file.tensors().size(), 2U);
  for (const auto& [name, want] : {std::pair{"weight", 1 + 3.0 / 1024}, {"mean", 1.0}}) {
    ASSERT_EQ(file.find(name)->dtype, "F32");
    const Tensor values = read_tensor(file, *file.find(name));
    EXPECT_TRUE(at::equal(values, at::full_like(values, want))) << name;
  }
}

// --- what is refused ---

TEST(Master, RefusesInOneLine) {
  const World world = World::alone();
  const Tensor p = parameter({2}, 1, at::kBFloat16);
  const auto make = [&](const Tensor& tensor) {
    return refusal<UsageError>([&] { Optimizer optimizer({tensor}, SGD{}, {}, world); });
  };
  EXPECT_EQ(make(p), "accepted");
  EXPECT_EQ(make(at::ones({2}, at::kDouble)),
            "parameter 0 of group 0 is Double: parameters must be float32, bfloat16 or float16 on the CPU or "
            "a CUDA device and dense in memory (contiguous or channels_last)");
  EXPECT_EQ(refusal<UsageError>([&] { Optimizer optimizer({p}, SGD{}, {.hierarchy = "node"}, world); }),
            "parameter 0 of group 0 is BFloat16: with hierarchy \"node\" it must be float32, since a node's "
            "workers share no fp32 masters");
  EXPECT_THAT(refusal<UsageError>([] {
                flock(2, [](int i, World& world) {
                  Optimizer optimizer(
                      std::vector<Tensor>{parameter({10}, 1, i == 0 ? at::kHalf : at::kBFloat16)}, SGD{}, {},
                      world);
                });
              }),
              HasSubstr("parameter 0 of group 0: Half 10 with strides 1 at worker 0, BFloat16 10 with"));
}

TEST(Master, ASumOfSquaresIsThatOfTheWideGradients) {
  const std::vector<Tensor> model = mixed_model();
  double want = 0;
  for (const Tensor& p : model) {
    p.mutable_grad() = at::empty_like(p.detach()).copy_(at::randn(p.sizes()));
    want += p.grad().to(at::kDouble).square().sum().item<double>();
  }
  std::vector<Block> blocks;
  append_blocks(blocks, {torch::optim::OptimizerParamGroup(model)}, 0, 1 << 20);
  EXPECT_GT(blocks.size(), 1U);
  EXPECT_NEAR(sum_of_squares(blocks), want, 1e-12 * want);
}

}  // namespace
}  // namespace starling
