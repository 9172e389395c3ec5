// One worker alone: every scheme, without a momentum of its own, is the local rule, with clipping,
// loss scales and narrow parameters.
#include <torch/nn/utils/clip_grad.h>

#include "tests/optim/scheme_contract.h"

namespace starling {
namespace {

using at::Tensor;

// Parameters of several sizes and blocks. The last one has no gradient.
std::vector<Tensor> some_parameters(at::ScalarType type = at::kFloat) {
  at::manual_seed(1);
  std::vector<Tensor> all;
  for (const int n : {7, 80'000, 1, 70'000, 5})
    all.push_back(at::randn({n}).div_(100).to(type).set_requires_grad(true));
  return all;
}

void set_gradients(const std::vector<Tensor>& all, int t) {
  at::manual_seed(static_cast<std::uint64_t>(t));
  for (std::size_t i = 0; i + 1 < all.size(); ++i) all[i].mutable_grad() = at::randn_like(all[i]);
}

void expect_close(const std::vector<Tensor>& one, const std::vector<Tensor>& other, double relative) {
  for (std::size_t i = 0; i < one.size(); ++i)
    EXPECT_TRUE(at::allclose(one[i].detach(), other[i].detach(), relative, 0.01 * relative))
        << "parameter " << i;
}

// Somebody changes parameters on the way.
TEST_P(SchemeContract, AloneItIsTheLocalRule) {
  const AdamW rule{.lr = 0.01, .weight_decay = 0.1};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const auto trained = [&](const Options& options, const Rule& rule) {
      const Tensor p = parameter({300}, 1, type);
      Optimizer optimizer({p}, rule, options, World::alone());
      train({p}, optimizer, 0, 0, 10);
      p.detach().slice(0, 0, 50).fill_(2);
      train({p}, optimizer, 0, 10, 20);
      EXPECT_EQ(optimizer.statistics().committed, 0U);
      const Consensus same(optimizer);  // moves what gossip has into the parameters
      if (type == at::kFloat) return p.detach().clone();
      const Tensor master = optimizer.state().tensors.at("master.0.0").clone();
      EXPECT_TRUE(at::equal(master.to(type), p.detach()));
      return master;
    };
    for (const Rule& each : {Rule(rule), Rule(AccumAdamW{.lr = 0.01, .window = 2})}) {
      const Tensor mine = trained(without_momentum(), each), plain = trained({}, each);
      EXPECT_TRUE(in_pairs() ? at::allclose(mine, plain, 1e-5, 1e-6) : at::equal(mine, plain)) << type;
    }
    const Tensor mine = trained(without_momentum(), rule);
    EXPECT_GT(mine[0].item<double>(), 1.5);
    if (type != at::kFloat) continue;
    const Tensor torchs = parameter({300}, 1);
    torch::optim::AdamW reference({torchs}, torch::optim::AdamWOptions(0.01).weight_decay(0.1));
    for (int t = 0; t < 20; ++t) {
      if (t == 10) torchs.detach().slice(0, 0, 50).fill_(2);
      torchs.mutable_grad() = torchs.detach() - centre(0, t);
      reference.step();
    }
    EXPECT_TRUE(at::allclose(mine, torchs.detach(), 1e-5, 1e-6));
  }
}

TEST_P(SchemeContract, ClipsAsTorchDoesButLeavesTheGradient) {
  for (const double clip : {10.0, 1e9}) {  // the norm is about 387
    const auto mine = some_parameters(), torchs = some_parameters();
    Options clipped = without_momentum();
    clipped.clip = clip;
    Optimizer optimizer(mine, AdamW{.lr = 0.01}, clipped, World::alone());
    Optimizer plain(torchs, AdamW{.lr = 0.01}, without_momentum(), World::alone());
    for (int t = 1; t <= 5; ++t) {
      set_gradients(mine, t);
      set_gradients(torchs, t);
      const Tensor before = mine[1].grad().clone();
      torch::nn::utils::clip_grad_norm_(torchs, clip);
      optimizer.step();
      plain.step();
      EXPECT_TRUE(at::equal(mine[1].grad(), before) || !leaves_gradients());
    }
    expect_close(mine, torchs, 1e-5);
  }
}

// The imaginary part of a complex number can have such a gradient.
TEST_P(SchemeContract, ReadsAGradientThatLiesInMemoryAsItsNegative) {
  const auto ends = [&](bool negated) {
    const Tensor p = parameter({}, 1), q = parameter({3}, 1);
    Options clearing = options();
    clearing.clear_gradients = true;
    Optimizer optimizer({p, q}, SGD{.lr = 0.1}, clearing, World::alone());
    for (int t = 0; t < 3; ++t) {
      for (const Tensor& x : {p, q}) {
        const Tensor g = x.detach() - centre(0, t);
        x.mutable_grad() = negated ? at::_neg_view(-g) : g;
      }
      optimizer.step();
      EXPECT_TRUE(is_all(p.grad(), 0) && is_all(q.grad(), 0));
    }
    const Consensus same(optimizer);  // moves what gossip has into the parameters
    return at::cat({p.detach().view({1}), q.detach()});
  };
  EXPECT_TRUE(at::equal(ends(true), ends(false)));
}

TEST_P(SchemeContract, TakesLossScalingBackBeforeItClipsAndForOneStep) {
  if (!may_skip()) GTEST_SKIP() << "no worker may scale its own gradients";
  const auto scaled = some_parameters(), plain = some_parameters();
  Options clipped = without_momentum();
  clipped.clip = 10;
  Optimizer mine(scaled, AdamW{.lr = 0.01}, clipped, World::alone());
  Optimizer other(plain, AdamW{.lr = 0.01}, clipped, World::alone());
  for (int t = 1; t <= 5; ++t) {
    set_gradients(scaled, t);
    set_gradients(plain, t);
    if (t == 3) {
      mine.scale_gradients(std::nullopt);  // an overflow: the other one has no step 3
      mine.step();
      continue;
    }
    if (t % 2 == 0) {
      for (const Tensor& p : scaled) {
        if (p.grad().defined()) p.mutable_grad().mul_(1024);
      }
      mine.scale_gradients(1.0f / 1024);
    }
    mine.step();
    other.step();
  }
  EXPECT_EQ(mine.statistics().skipped, 1U);
  expect_close(scaled, plain, 1e-6);
}

TEST_P(SchemeContract, ClipsAndSkipsNarrowGradientsAsWideOnes) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    at::manual_seed(2);
    const Tensor start = at::randn({70'000}).to(type);
    const Tensor p = start.clone().set_requires_grad(true), q = start.to(at::kFloat).set_requires_grad(true);
    Options careful = without_momentum();
    careful.clip = 3, careful.skip_not_finite = may_skip();
    Optimizer narrow({p}, AdamW{.lr = 0.01}, careful, World::alone());
    Optimizer wide({q}, AdamW{.lr = 0.01}, careful, World::alone());
    for (int t = 1; t <= 6; ++t) {
      narrow.zero_grad(), wide.zero_grad();
      EXPECT_FALSE(p.grad().defined() && p.grad().abs().sum().item<double>() > 0);
      Tensor g = at::randn({70'000}).to(type);
      if (t == 3 && may_skip()) g[69'999] = INFINITY;
      p.mutable_grad() = g.clone();
      q.mutable_grad() = g.to(at::kFloat);
      narrow.step(), wide.step();
      EXPECT_EQ(narrow.statistics().skipped, t >= 3 && may_skip() ? 1U : 0U);
    }
    EXPECT_EQ(narrow.statistics().skipped, wide.statistics().skipped);
    const double rounded = couples_parameters() ? 1e-2 : 0;  // what replaces .grad is narrow
    const Tensor master = narrow.state().tensors.at("master.0.0"), x = wide.state().tensors.at("model.0.0");
    EXPECT_TRUE(at::allclose(master, x.detach(), rounded, rounded)) << type;
  }
}

// Weights are clipped: the changed ones are taken, the others keep every bit.
TEST_P(SchemeContract, TakesNarrowParametersThatWereChangedBetweenSteps) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    at::manual_seed(1);
    const Tensor p = at::randn({400}).to(type).set_requires_grad(true);
    const Tensor g = at::full({400}, 0.3, type).to(at::kFloat);
    Optimizer optimizer({p}, SGD{.lr = 0.01}, without_momentum(), World::alone());
    const auto step = [&] {
      p.mutable_grad() = g.to(type);
      optimizer.step();
    };
    const auto master = [&] { return optimizer.state().tensors.at("master.0.0").clone(); };
    const c10::AutoGradMode no_gradient(false);
    step();
    const Tensor before = master(), at_before = p.clone();
    p.clamp_(-0.5, 0.5);
    const Tensor changed = p.ne(at_before);
    EXPECT_GT(changed.sum().item<int>(), 50);
    EXPECT_LT(changed.sum().item<int>(), 350);
    step();
    const Tensor start = before.where(changed.logical_not(), p.sign() * 0.5);
    EXPECT_TRUE(at::allclose(master(), start - 0.01 * g, 0, 1e-7));
    if (in_pairs()) continue;  // a change reaches the master in the next step
    // Other values, other memory.
    p.copy_(at::full({400}, 2.0));
    EXPECT_TRUE(at::equal(master(), at::full({400}, 2.0)));
    p.set_data(at::full({400}, 7.0, type));
    step();
    EXPECT_TRUE(at::allclose(master(), 7 - 0.01 * g, 0, 1e-6));
  }
}

}  // namespace
}  // namespace starling
