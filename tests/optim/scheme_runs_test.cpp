// Two runs of several workers with every scheme, which must agree: in virtual time, where every
// scheme repeats its bits.
#include "tests/optim/scheme_contract.h"

namespace starling {
namespace {

using at::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// One run: its parameters, gradients and optimizer.
struct Training {
  Options options;
  Rule rule = AdamW{.lr = 0.05};
  int steps = 6;
  std::function<std::vector<Tensor>(int i)> parameters{};
  // Sets the gradients of step t, which begins at 1.
  std::function<void(std::vector<Tensor>&, Optimizer&, int i, int t)> gradients{};
  std::function<void(const std::vector<Tensor>&, const Optimizer&, int i, int t)> after_step{};
  double later_lr = 0.05;  // from step 5 on
  bool around_torchs_adamw = false;
  double decay = 0.1;  // of torch's AdamW
};

struct Trained {
  std::vector<std::vector<Tensor>> x;  // by worker
  std::vector<Statistics> counts;
};

Trained train_virtually(const Training& the, int n) {
  Trained all{std::vector<std::vector<Tensor>>(static_cast<std::size_t>(n)),
              std::vector<Statistics>(static_cast<std::size_t>(n))};
  virtual_flock(n, [&](int i, World& world, VirtualTime& time) {
    std::vector<Tensor> x = the.parameters(i);
    torch::optim::AdamW inner(x, torch::optim::AdamWOptions(0.05).weight_decay(the.decay));
    Optimizer optimizer = the.around_torchs_adamw ? Optimizer(inner, the.options, world)
                                                  : Optimizer(x, the.rule, the.options, world);
    for (int t = 1; t <= the.steps; ++t) {
      time.sleep(10ms);
      the.gradients(x, optimizer, i, t);
      torch::optim::Optimizer& stepped = optimizer;
      if (t == 5)
        (the.around_torchs_adamw ? inner : stepped).param_groups()[0].options().set_lr(the.later_lr);
      optimizer.step();
      if (the.after_step) the.after_step(x, optimizer, i, t);
    }
    all.counts[static_cast<std::size_t>(i)] = optimizer.statistics();
    EXPECT_EQ(optimizer.statistics().aborted, 0U);
    for (const Tensor& p : x) all.x[static_cast<std::size_t>(i)].push_back(p.detach().clone());
    nobody_leaves_yet(optimizer);
  });
  return all;
}

void expect_equal(const Trained& one, const Trained& other, double relative = 0, double absolute = 0) {
  for (std::size_t i = 0; i < one.x.size(); ++i) {
    ASSERT_EQ(one.x[i].size(), other.x[i].size());
    for (std::size_t k = 0; k < one.x[i].size(); ++k)
      EXPECT_TRUE(at::allclose(one.x[i][k], other.x[i][k], relative, absolute))
          << "worker " << i << ", parameter " << k;
    EXPECT_EQ(one.counts[i].rounds, other.counts[i].rounds);
  }
}

Tensor waves(std::int64_t rows, std::int64_t columns, double phase) {
  return at::sin(at::arange(rows * columns, at::kFloat) * 1.7 + phase).view({rows, columns});
}

TEST_P(SchemeContract, AccumulationOverMicroBatchesIsOneBigBatch) {
  constexpr int kMicro = 4, kRows = 8;
  const auto with = [&](int parts) {
    return train_virtually(
        {.options = options(),
         .steps = 8,
         .parameters = [](int) { return std::vector<Tensor>{waves(5, 2, 0.3).set_requires_grad(true)}; },
         .gradients =
             [parts](std::vector<Tensor>& x, Optimizer& optimizer, int i, int t) {
               const Tensor inputs = waves(kMicro * kRows, 5, i + t),
                            targets = waves(kMicro * kRows, 2, i - t);
               const int rows = kMicro * kRows / parts;
               optimizer.zero_grad();
               for (int k = 0; k < parts; ++k) {
                 const auto part = [&](const Tensor& all) { return all.slice(0, k * rows, (k + 1) * rows); };
                 (at::mse_loss(at::mm(part(inputs), x[0]), part(targets)) / parts).backward();
               }
             }},
        kMany);
  };
  const Trained big = with(1), sum = with(kMicro);
  expect_equal(big, sum, 1e-4, 1e-5);
  for (const auto& x : big.x) EXPECT_FALSE(at::allclose(x[0], waves(5, 2, 0.3), 0.1, 0.1));
}

// In an order in memory other than that of their indices. Gradients have yet another order, or are
// expanded. An all-reduce adds in an order that depends on the place in memory.
TEST_P(SchemeContract, UpdatesAndMixesChannelsLastAndTransposedParameters) {
  const Tensor image = at::sin(at::arange(4 * 3 * 5 * 5, at::kFloat)).view({4, 3, 5, 5});
  const Tensor matrix = at::sin(at::arange(400 * 300, at::kFloat)).view({400, 300});
  const auto with = [&](bool strange) {
    return train_virtually(
        {.options = options(),
         .rule = Adam{.lr = 0.05},
         .parameters =
             [&](int) {
               const auto order = [&](const Tensor& x, const Tensor& other) {
                 return (strange ? other : x.clone()).set_requires_grad(true);
               };
               return std::vector<Tensor>{order(image, image.contiguous(at::MemoryFormat::ChannelsLast)),
                                          order(matrix, matrix.t().contiguous().t())};
             },
         .gradients =
             [strange](std::vector<Tensor>& x, Optimizer&, int i, int t) {
               for (const Tensor& p : x) {
                 EXPECT_EQ(p.is_contiguous(), !strange);
                 Tensor g = (p.detach() * (1 + i) - centre(i, t)).contiguous();
                 if (t % 3 == 0) g = at::full({1}, centre(i, t)).expand(p.sizes());
                 p.mutable_grad() = t % 3 == 1 ? g.contiguous(p.suggest_memory_format()) : g;
               }
             }},
        kMany);
  };
  mixes() ? expect_equal(with(true), with(false)) : expect_equal(with(true), with(false), 1e-5, 1e-6);
}

TEST_P(SchemeContract, TakesAThousandTinyParametersAndEmptyOnesBetweenThem) {
  const auto with = [&](int many) {
    return train_virtually({.options = uncoupled(),
                            .rule = SGD{.lr = 0.5},
                            .steps = 3,
                            .parameters =
                                [many](int) {
                                  std::vector<Tensor> x;
                                  for (int k = 0; k < many; ++k)
                                    x.push_back(parameter({many == 1 ? 2 : k % 3}, 1));
                                  return x;
                                },
                            .gradients =
                                [many](std::vector<Tensor>& x, Optimizer& optimizer, int i, int) {
                                  EXPECT_EQ(optimizer.parameter_count(), many == 1 ? 2 : 999);
                                  for (const Tensor& p : x) p.mutable_grad() = at::full(p.sizes(), i - 1.0);
                                }},
                           kMany);
  };
  const Trained one = with(1), all = with(1000);
  for (std::size_t i = 0; i < one.x.size(); ++i) {
    for (const Tensor& p : all.x[i]) EXPECT_TRUE(is_all(p, one.x[i][0][0].item<double>())) << i;
  }
}

// Blocks that share a parameter, strides other than the parameter's, bfloat16, a step that is
// skipped, and blocks that another worker of the node updates.
TEST_P(SchemeContract, ClearsGradientsAndTrainsTheSameParameters) {
  std::vector<Options> all{options()};
  if (info().make_in_nodes != nullptr) {
    all.push_back(options());
    all.back().hierarchy = "node", all.back().workers_per_node = 2;
  }
  for (Options& one : all) {
    const bool in_nodes = one.hierarchy == "node";
    one.skip_not_finite = may_skip();
    const auto with = [&](bool clear) {
      one.clear_gradients = clear;
      return train_virtually(
          {.options = one,
           .rule = AdamW{.lr = 0.01},
           .steps = 4,
           .parameters =
               [in_nodes](int) {
                 std::vector<Tensor> x;
                 for (const int n : {7, 200'000, 70'000}) x.push_back(waves(1, n, 0).view({-1}));
                 x.push_back(waves(300, 200, 0));
                 if (!in_nodes) x.push_back(waves(1, 100, 0).to(at::kBFloat16));
                 for (Tensor& p : x) p.set_requires_grad(true);
                 return x;
               },
           .gradients =
               [this](std::vector<Tensor>& x, Optimizer& optimizer, int i, int t) {
                 EXPECT_GT(optimizer.block_sizes().size(), 3U);
                 EXPECT_EQ(optimizer.statistics().skipped, t == 4 && may_skip() ? 1U : 0U);
                 for (std::size_t k = 0; k < x.size(); ++k) {
                   Tensor g = waves(1, x[k].numel(), 10 * t + i).to(x[k].scalar_type()).view_as(x[k]);
                   if (k == 3) g = g.t().contiguous().t();
                   if (t == 3 && may_skip()) g.select(0, 0).fill_(std::numeric_limits<float>::quiet_NaN());
                   x[k].mutable_grad() = g;
                 }
                 if (t == 4) x[0].mutable_grad().reset();
               },
           .after_step =
               [clear](const std::vector<Tensor>& x, const Optimizer&, int, int t) {
                 for (const Tensor& p : x) {
                   if (!p.grad().defined()) continue;
                   EXPECT_EQ(p.grad().count_nonzero().item<std::int64_t>() == 0, clear) << "step " << t;
                   EXPECT_TRUE(p.grad()._version() > 0 || !clear);
                 }
               }},
          in_nodes ? 2 : kMany);
    };
    expect_equal(with(true), with(false));
  }
}

// A power of two costs fp32 nothing. So the bits are those without a scale, in which the steps that
// overflow are left out.
TEST_P(SchemeContract, AnOverflowOnOneWorkerSkipsItsStepAndNoExchange) {
  constexpr int kOverflow = 5, kWorker = 1;
  if (!may_skip() || !mixes()) GTEST_SKIP() << "workers do not skip on their own";
  for (const double clip : {0.0, 1.0}) {
    Options plain = options();
    plain.clip = clip;
    const auto with = [&](bool scaled) {
      Options these = plain;
      if (scaled) these.loss_scaling = LossScaling{.initial = 1024, .grow_every = 4};
      return train_virtually(
          {.options = these,
           .rule = AdamW{.lr = 0.1},
           .steps = 9,
           .parameters = [](int) { return std::vector<Tensor>{parameter({300})}; },
           .gradients =
               [scaled](std::vector<Tensor>& x, Optimizer& optimizer, int i, int t) {
                 const bool overflows = i == kWorker && t == kOverflow;
                 x[0].mutable_grad() = (x[0].detach() - centre(i, t)) * optimizer.loss_scale();
                 if (scaled && overflows) x[0].mutable_grad()[7] = kInfinity;
                 if (!scaled && overflows) optimizer.scale_gradients(std::nullopt);
               },
           .after_step =
               [scaled](const std::vector<Tensor>&, const Optimizer& optimizer, int i, int t) {
                 if (!scaled || t != 9) return;  // grown twice, and one is halved
                 EXPECT_EQ(optimizer.loss_scale(), i == kWorker ? 2048 : 4096);
               }},
          kMany);
    };
    const Trained scaled = with(true), reference = with(false);
    expect_equal(scaled, reference);
    for (std::size_t i = 0; i < kMany; ++i) EXPECT_EQ(scaled.counts[i].skipped, i == kWorker ? 1U : 0U);
  }
}

// AdamW decays by its own factor. Its step does not depend on x. So torch's AdamW inside, with
// mixing around it, is Starling's own.
TEST_P(SchemeContract, AroundTorchsAdamWItIsStarlingsAdamW) {
  if (!info().traits.own_rule.empty()) GTEST_SKIP() << info().traits.own_rule;
  // Starling's rules multiply the decay by a worker's weight, where there are weights.
  const double decay = info().traits.edges == EdgeKind::directed ? 0 : 0.1;
  const auto with = [&](bool around) {
    return train_virtually({.options = options(),
                            .rule = AdamW{.lr = 0.05, .weight_decay = decay},
                            .steps = 10,
                            .parameters = [](int) { return std::vector<Tensor>{parameter({70'000}, 1)}; },
                            .gradients = [](std::vector<Tensor>& x, Optimizer&, int i,
                                            int t) { x[0].mutable_grad() = x[0].detach() - centre(i, t); },
                            .later_lr = 0.02,
                            .around_torchs_adamw = around,
                            .decay = decay},
                           kMany);
  };
  expect_equal(with(true), with(false), 1e-4, 1e-6);
}

}  // namespace
}  // namespace starling
