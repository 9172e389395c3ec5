// Muon against its equations in plain loops, on matrices of every shape, alone and with neighbours.
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "starling/optim/direction.h"
#include "starling/optim/parameter_groups.h"
#include "starling/optim/rule_step.h"
#include "starling/topology/schedules.h"
#include "tests/optim/every_scheme.h"
#include "tests/optim/plain.h"

namespace starling {
namespace {

using at::Tensor;
using testing::ElementsAre;
using testing::HasSubstr;
using torch::optim::OptimizerParamGroup;

using Matrix = std::vector<std::vector<double>>;

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c(a.size(), std::vector<double>(b[0].size()));
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < b[0].size(); ++j) {
      for (std::size_t k = 0; k < b.size(); ++k) c[i][j] += a[i][k] * b[k][j];
    }
  }
  return c;
}

Matrix transposed(const Matrix& a) {
  Matrix t(a[0].size(), std::vector<double>(a.size()));
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < a[0].size(); ++j) t[j][i] = a[i][j];
  }
  return t;
}

// u a + v b
Matrix sum(double u, const Matrix& a, double v, const Matrix& b) {
  Matrix c = a;
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < a[0].size(); ++j) c[i][j] = u * a[i][j] + v * b[i][j];
  }
  return c;
}

// Newton-Schulz in double: x <- a x + (b A + c A A) x with A = x x^T.
Matrix orthogonal(Matrix x, int steps) {
  double squares = 0;
  for (const auto& row : x) {
    for (const double value : row) squares += value * value;
  }
  x = sum(1 / std::sqrt(squares), x, 0, x);
  for (int i = 0; i < steps; ++i) {
    const Matrix gram = product(x, transposed(x));
    x = sum(3.4445, x, 1, product(sum(-4.7750, gram, 2.0315, product(gram, gram)), x));
  }
  return x;
}

Matrix matrix_of(const Tensor& tensor) {
  const Tensor flat = tensor.detach().reshape({tensor.size(0), -1}).to(at::kDouble).contiguous();
  Matrix all;
  for (std::int64_t i = 0; i < flat.size(0); ++i) {
    const auto* const row = flat.const_data_ptr<double>() + i * flat.size(1);
    all.emplace_back(row, row + flat.size(1));
  }
  return all;
}

double largest_difference(const Matrix& a, const Tensor& b) {
  double most = 0;
  const Matrix other = matrix_of(b);
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < a[0].size(); ++j) most = std::max(most, std::abs(a[i][j] - other[i][j]));
  }
  return most;
}

// One matrix and its equations.
struct PlainMatrix {
  Matrix x, m;

  void step(const Muon& o, const Matrix& g) {
    m = sum(o.momentum, m, 1 - o.momentum, g);
    const Matrix n = o.nesterov ? sum(o.momentum, m, 1 - o.momentum, g) : m;
    const auto rows = static_cast<double>(x.size()), columns = static_cast<double>(x[0].size());
    const double r = o.adjust_lr_fn == Muon::original          ? std::sqrt(std::max(1.0, rows / columns))
                     : o.adjust_lr_fn == Muon::match_rms_adamw ? 0.2 * std::sqrt(std::max(rows, columns))
                                                               : std::sqrt(rows / columns);
    x = sum(1 - o.lr * o.weight_decay, x, -o.lr * r, orthogonal(n, o.ns_steps));
  }
};

// Parameters of all shapes: tall, wide, two of four dimensions, the second in channels_last.
std::vector<Tensor> matrices(std::uint64_t seed) {
  at::manual_seed(seed);
  std::vector<Tensor> all{at::randn({12, 5}), at::randn({4, 9}), at::randn({6, 3, 2, 2}),
                          at::randn({3, 4, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast)};
  for (Tensor& p : all) p.set_requires_grad(true);
  return all;
}

// Copies of their own, since threads share torch's random numbers.
std::vector<Tensor> clones(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> all;
  for (const Tensor& p : tensors) all.push_back(p.detach().clone().set_requires_grad(true));
  return all;
}

// The products are in bf16, whose roundings the small singular values make larger: a step is off by
// at most this share of its length.
constexpr double kProducts = 0.05;

TEST(Muon, IsItsEquation) {
  for (const Muon& rule : {Muon{.lr = 0.01}, Muon{.lr = 0.01, .momentum = 0.5, .nesterov = false},
                           Muon{.lr = 0.01, .weight_decay = 2, .ns_steps = 3},
                           Muon{.lr = 0.01, .adjust_lr_fn = Muon::match_rms_adamw},
                           Muon{.lr = 0.01, .adjust_lr_fn = Muon::spectral_unclamped}}) {
    std::vector<Tensor> all = matrices(1);
    std::vector<PlainMatrix> expected;
    for (const Tensor& p : all) expected.push_back({matrix_of(p), matrix_of(at::zeros_like(p))});
    Optimizer optimizer(all, rule, {}, World::alone());
    for (int t = 1; t <= 20; ++t) {
      for (std::size_t k = 0; k < all.size(); ++k) {
        // Its memory order is the standard one: the optimizer must bring it into the parameter's.
        all[k].mutable_grad() = at::randn(all[k].sizes());
        expected[k].step(rule, matrix_of(all[k].grad()));
      }
      optimizer.step();
    }
    for (std::size_t k = 0; k < all.size(); ++k) {
      const auto rows = static_cast<double>(expected[k].x.size());
      const auto columns = static_cast<double>(expected[k].x[0].size());
      const double r = rule.adjust_lr_fn == Muon::match_rms_adamw ? 0.2 * std::sqrt(std::max(rows, columns))
                                                                  : std::max(1.0, std::sqrt(rows / columns));
      EXPECT_LT(largest_difference(expected[k].x, all[k]), 20 * rule.lr * r * kProducts)
          << all[k].sizes() << " momentum " << rule.momentum;
    }
  }
}

// With directions from direction(), which the test above compares, the rest agrees to rounding.
TEST(Muon, MixesWhatTheNeighboursHave) {
  const Muon rule{.lr = 0.02, .weight_decay = 0.5};
  constexpr int kSteps = 20;
  const auto gradient = [](int i, int t, const Tensor& p) {
    return at::sin(at::arange(p.numel(), at::kFloat) * (1.3 + i) + t * 0.7).view(p.sizes());
  };
  const std::vector<Tensor> first = matrices(1);
  std::vector<std::vector<Tensor>> x(kWorkers), m(kWorkers);
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (const Tensor& p : first) {
      x[i].push_back(p.detach());
      m[i].push_back(at::zeros({p.numel()}));
    }
  }
  const Schedule ring = make_schedule("ring", kWorkers);
  for (int t = 1; t <= kSteps; ++t) {
    const auto before = x;
    for (int i = 0; i < kWorkers; ++i) {
      const auto w = static_cast<std::size_t>(i);
      for (std::size_t k = 0; k < x[w].size(); ++k) {
        Tensor Wx = before[w][k] * ring.rounds[0].self_weight(i);
        for (const Neighbour& j : ring.rounds[0].neighbours[w])
          Wx = Wx + before[static_cast<std::size_t>(j.rank)][k] * j.weight;
        const Tensor g = at::empty_like(Wx).copy_(gradient(i, t, Wx));
        const double rows = static_cast<double>(g.size(0)), columns = static_cast<double>(g.numel()) / rows;
        const MatrixDirection moves = direction(rule, g, 1, m[w][k]);
        moves.move_momentum();
        x[w][k] = Wx * (1 - rule.lr * rule.weight_decay) -
                  moves.along * (rule.lr * std::sqrt(std::max(1.0, rows / columns)));
      }
    }
  }
  const auto ends = results_of(kWorkers, [&](int i, World& world) {
    std::vector<Tensor> all = clones(first);
    Optimizer optimizer(all, rule, {.topology = "ring"}, world);
    for (int t = 1; t <= kSteps; ++t) {
      for (Tensor& p : all) p.mutable_grad() = gradient(i, t, p);
      optimizer.step();
    }
    nobody_leaves_yet(optimizer);
    return all;
  });
  for (std::size_t i = 0; i < ends.size(); ++i) {
    for (std::size_t k = 0; k < ends[i].size(); ++k)
      EXPECT_TRUE(at::allclose(ends[i][k].detach(), x[i][k], 1e-5, 1e-5)) << i << " " << k;
  }
  EXPECT_FALSE(at::allclose(x[0][0], x[1][0], 1e-3, 1e-3));
}

TEST(Muon, LeavesTheRestToAdamW) {
  const Muon rule{
      .lr = 0.02, .weight_decay = 0.3, .adamw_scale = 0.5, .betas = {0.8, 0.95}, .adamw_eps = 1e-6};
  Muon apart = rule;
  apart.use_muon = false;
  std::vector<Tensor> all{parameter({7}, 0.5), parameter({5, 3}, 0.5), parameter({}, 0.5)};
  const std::vector<OptimizerParamGroup> groups{{{all[0], all[2]}, rule_options(rule)},
                                                {{all[1]}, rule_options(apart)}};
  Optimizer optimizer(groups, rule, {}, World::alone());
  const AdamW adamw{.lr = 0.01, .betas = {0.8, 0.95}, .eps = 1e-6, .weight_decay = 0.3};
  std::vector<Plain> plain(all.size());
  std::vector<double> x(all.size(), 0.5);
  for (int t = 1; t <= 20; ++t) {
    for (std::size_t k = 0; k < all.size(); ++k) {
      const double g = centre(static_cast<int>(k), t);
      all[k].mutable_grad() = at::full_like(all[k].detach(), g);
      const double u = plain[k].direction(g, {.betas = adamw.betas, .eps = adamw.eps, .window = 1});
      x[k] = (1 - adamw.lr * adamw.weight_decay) * x[k] - adamw.lr * u;
    }
    optimizer.step();
  }
  for (std::size_t k = 0; k < all.size(); ++k) EXPECT_TRUE(is_all(all[k], x[k])) << k;
}

// A matrix is never cut, so the blocks' size changes no bit.
TEST(Muon, TakesAMatrixWholeThatIsLargerThanABlock) {
  const auto run = [](std::int64_t block_bytes, std::vector<std::int64_t>& sizes) {
    at::manual_seed(5);
    std::vector<Tensor> all{at::randn({70'000}), at::randn({700, 100}), at::randn({500'000}),
                            at::randn({40, 30}), at::randn({9})};
    for (Tensor& p : all) p.set_requires_grad(true);
    Optimizer optimizer(all, Muon{.lr = 0.01}, {.block_bytes = block_bytes}, World::alone());
    sizes = optimizer.block_sizes();
    for (int t = 1; t <= 3; ++t) {
      for (Tensor& p : all) p.mutable_grad() = at::randn(p.sizes());
      optimizer.step();
    }
    return all;
  };
  std::vector<std::int64_t> small, large;
  const auto cut = run(1, small), whole = run(std::int64_t{1} << 30, large);
  constexpr std::int64_t kSmall = 65'536, kLarge = 80'151;  // an eighth of all
  EXPECT_THAT(small, ElementsAre(kSmall, 4'464, 70'000, kSmall, kSmall, kSmall, kSmall, kSmall, kSmall,
                                 kSmall, 41'248 + 1'200 + 9));
  EXPECT_THAT(large,
              ElementsAre(70'000, kLarge, kLarge, kLarge, kLarge, kLarge, kLarge, kLarge, 8'943 + 1'200 + 9));
  for (std::size_t k = 0; k < cut.size(); ++k) EXPECT_TRUE(at::equal(cut[k], whole[k])) << k;
}

TEST(Muon, KeepsASecondMomentOnlyForTheRest) {
  std::vector<Tensor> all{parameter({3}), parameter({4, 6}), parameter({2, 2})};
  const Optimizer optimizer(all, Muon{}, {}, World::alone());
  const OptimizerState state = optimizer.state();
  for (const char* const name : {"m.0.0", "m.0.1", "m.0.2", "v.0.0"})
    EXPECT_TRUE(state.tensors.contains(name)) << name;
  for (const char* const name : {"v.0.1", "v.0.2"}) EXPECT_FALSE(state.tensors.contains(name)) << name;
}

TEST(Muon, ClipsSkipsAndClears) {
  for (const bool clears : {false, true}) {
    Tensor clipped = at::eye(4).set_requires_grad(true), plain = at::eye(4).set_requires_grad(true);
    const Options options{.clip = 0.5, .skip_not_finite = true, .clear_gradients = clears};
    Optimizer one({clipped}, Muon{.lr = 0.1}, options, World::alone());
    Optimizer other({plain}, Muon{.lr = 0.1}, {}, World::alone());
    at::manual_seed(2);
    for (int t = 1; t <= 6; ++t) {
      const Tensor g = at::randn({4, 4});
      clipped.mutable_grad() = t == 4 ? g / 0 : g.clone();
      plain.mutable_grad() = g * std::min(1.0, 0.5 / (g.norm().item<double>() + 1e-6));
      one.step();
      if (t != 4) other.step();
      EXPECT_EQ(at::equal(clipped.grad(), at::zeros({4, 4})), clears) << t;
    }
    EXPECT_EQ(one.statistics().skipped, 1U);
    // Norms are taken in another order here.
    EXPECT_TRUE(at::allclose(clipped.detach(), plain.detach(), 0, 0.1 * 5 * kProducts));
    EXPECT_FALSE(at::allclose(clipped.detach(), at::eye(4), 0, 0.1));
  }
}

TEST(Muon, MovesTheMastersOfNarrowParameters) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    at::manual_seed(4);
    Tensor narrow = at::randn({8, 6}).to(type).set_requires_grad(true);
    Tensor wide = narrow.detach().to(at::kFloat).set_requires_grad(true);
    Optimizer one({narrow}, Muon{.lr = 1e-4}, {}, World::alone());
    Optimizer other({wide}, Muon{.lr = 1e-4}, {}, World::alone());
    for (int t = 1; t <= 20; ++t) {
      narrow.mutable_grad() = at::randn({8, 6}).to(type);
      wide.mutable_grad() = narrow.grad().to(at::kFloat);
      one.step(), other.step();
    }
    // A direction has the parameter's type; fp16 has more digits than bf16, in which it is made.
    EXPECT_TRUE(at::equal(one.state().tensors.at("master.0.0"), wide.detach()));
    EXPECT_TRUE(at::equal(narrow.detach(), wide.detach().to(type)));
  }
}

// The gradients, the local step and the step's difference of a scheme are those of any rule.
TEST(Muon, GoesWithEveryScheme) {
  at::manual_seed(3);
  const std::vector<Tensor> first{at::randn({6, 4}), at::randn({5})};
  const Tensor target = at::randn({6, 4});
  for (const SchemeInfo* const info : schemes()) {
    SCOPED_TRACE(info->name);
    Options options = options_of(*info);
    // A scheme's own momentum, beside Muon's, goes too far. Workers alone need means.
    end_at_merged(options, *info);
    if (info->traits.edges == EdgeKind::none && info->takes_means()) options.mean_every = 10;
    for (const SchemeOption& option : info->options) {
      if (is_momentum(option)) options.scheme.options.emplace_back(std::string(option.name), 0.0);
    }
    const auto ends = results_of(4, [&](int i, World& world) {
      const std::vector<Tensor> all = clones(first);
      const Tensor &matrix = all[0], &rest = all[1];
      Optimizer optimizer(all, Muon{.lr = 0.15, .weight_decay = 0}, options, world);
      for (int t = 1; t <= 120; ++t) {
        const double lr = 0.15 * (1 - t / 121.0);
        optimizer.param_groups()[0].options().set_lr(lr);
        optimizer.zero_grad();
        ((matrix - target - 0.1 * i).square().sum() + (rest - 0.1 * i).square().sum()).backward();
        optimizer.step();
      }
      optimizer.wait_for_all();
      const c10::AutoGradMode no_gradient(false);
      std::array<double, 2> off{};
      {
        const Consensus average(optimizer);
        // The targets' mean over the workers is 0.15 off.
        off = {(matrix - target - 0.15).norm().item<double>(), (rest - 0.15).norm().item<double>()};
      }
      nobody_leaves_yet(optimizer);
      return off;
    });
    for (const auto& [matrix, rest] : ends) {
      EXPECT_LT(matrix, 2);  // from 7
      EXPECT_LT(rest, 1);    // from 2
    }
  }
}

TEST(Muon, RefusesBadOptions) {
  const auto said = [](const Muon& rule) { return refusal<UsageError>([&] { check_rule(rule); }); };
  EXPECT_THAT(said({.momentum = 1}), HasSubstr("Muon: momentum = 1 is not allowed"));
  EXPECT_THAT(said({.ns_steps = 0}), HasSubstr("Muon: ns_steps = 0 is not allowed"));
  EXPECT_THAT(said({.ns_steps = 100}), HasSubstr("ns_steps = 100"));
  EXPECT_THAT(said({.eps = 0}), HasSubstr("Muon: eps = 0"));
  EXPECT_THAT(said({.adamw_scale = -1}), HasSubstr("Muon: adamw_scale = -1"));
  EXPECT_THAT(said({.adjust_lr_fn = static_cast<Muon::AdjustLr>(3)}), HasSubstr("adjust_lr_fn = 3"));
  EXPECT_EQ(said({}), "accepted");
}

TEST(Muon, KeepsTheKindOfAParameter) {
  const Tensor matrix = parameter({3, 2}, 1);
  Optimizer optimizer({matrix}, Muon{}, {}, World::alone());
  std::get<Muon>(rule_of(optimizer.param_groups()[0])).use_muon = false;
  matrix.mutable_grad() = at::ones({3, 2});
  EXPECT_THAT(refusal<UsageError>([&] { optimizer.step(); }),
              HasSubstr("a parameter [3, 2] was updated as a matrix when the optimizer was made"));
}

TEST(Muon, MustBeOfTheSameKindOnAllWorkers) {
  flock(2, [&](int i, World& world) {
    EXPECT_THAT(refusal([&] { Optimizer({parameter({3, 2})}, Muon{.use_muon = i == 0}, {}, world); }),
                HasSubstr("updated as a matrix"));
  });
}

TEST(GroupsOf, SetsEmbeddingsApartForMuon) {
  torch::nn::Sequential net(torch::nn::Embedding(5, 3), torch::nn::Linear(3, 2), torch::nn::Linear(2, 2));
  net->at<torch::nn::LinearImpl>(2).bias.set_requires_grad(false);
  const auto one = groups_of(*net, SGD{});
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(one[0].params().size(), 4U);
  auto two = groups_of(*net, Muon{.lr = 0.5});
  ASSERT_EQ(two.size(), 2U);
  EXPECT_EQ(two[0].params().size(), 3U);
  EXPECT_EQ(rule_of(two[0]), Rule(Muon{.lr = 0.5}));
  ASSERT_EQ(two[1].params().size(), 1U);
  EXPECT_TRUE(two[1].params()[0].is_same(net->at<torch::nn::EmbeddingImpl>(0).weight));
  EXPECT_EQ(rule_of(two[1]), Rule(Muon{.lr = 0.5, .use_muon = false}));
  EXPECT_EQ(groups_of(*net->ptr(0), Muon{})[0].params().size(), 0U);  // all are embeddings
}

}  // namespace
}  // namespace starling
