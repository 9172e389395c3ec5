// The properties of every scheme of the table, whatever its algorithm. scheme_equations_test.cpp
// has the equations, scheme_refusals_test.cpp the refusals.
//
// Tests compare two runs in virtual time, where every scheme repeats its bits, or one worker alone.
#include <torch/nn/utils/clip_grad.h>

#include "starling/optim/options.h"
#include "starling/optim/schemes.h"
#include "tests/optim/every_scheme.h"

namespace starling {
namespace {

using namespace std::chrono_literals;
using at::Tensor;
using testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class SchemeContract : public EveryScheme {
 protected:
  // p has a zero gradient in every step, q none.
  void expect_the_mean_is_kept(at::ScalarType type) const;
};

// ---------------------------------------------------------------- the sum of all parameters

// In virtual time a gradient takes all workers equally long. Otherwise momentum would keep the mean
// of x and x~ together, but not that of x alone (gossip/pair_averaging.cpp).
void SchemeContract::expect_the_mean_is_kept(at::ScalarType type) const {
  virtual_flock(kMany, [&](int i, World& world, VirtualTime& time) {
    const Tensor p = parameter({5000}, 0, type), q = parameter({300}, 0, type);
    Optimizer optimizer({p, q}, SGD{.lr = 0.1}, options(), world);
    {
      const c10::AutoGradMode no_gradient(false);
      p.add_(1.0 + i), q.sub_(2.0 * i);
    }
    const auto mean = [&] {
      const Consensus average(optimizer);
      return at::cat({p.detach().to(at::kFloat), q.detach().to(at::kFloat)}).clone();
    };
    const Tensor before = mean();
    const double distance = optimizer.consensus_distance();
    for (int t = 0; t < 20; ++t) {
      time.sleep(10ms);
      p.mutable_grad() = at::zeros_like(p);
      optimizer.step();
    }
    nobody_leaves_yet(optimizer);
    // A scheme that tracks gradients keeps their sum. It takes the mean of two x at one end only.
    if (!info().traits.sums_gradients) {
      EXPECT_TRUE(at::allclose(mean(), before, 1e-3, 1e-3)) << mean()[0] << " " << before[0];
    }
    if (mixes() && !in_pairs()) {
      EXPECT_LT(optimizer.consensus_distance(), 0.5 * distance);
    }
    if (!mixes()) {
      EXPECT_EQ(optimizer.consensus_distance(), distance);
    }
  });
}

TEST_P(SchemeContract, KeepsTheMeanOfAllParametersUsedOrNot) { expect_the_mean_is_kept(at::kFloat); }

TEST_P(SchemeContract, KeepsTheMeanOfMasters) { expect_the_mean_is_kept(at::kBFloat16); }

// Both ends lose the same by rounding. So the mean is exact, and workers agree up to the format.
TEST_P(SchemeContract, KeepsTheMeanWithEveryWire) {
  constexpr int kSteps = 40;
  if (info().traits.sums_gradients) GTEST_SKIP() << "keeps the sum of tracked gradients, not of x";
  const std::map<Wire, double> apart{
      {Wire::fp32, 1e-5}, {Wire::bf16, 8e-3}, {Wire::fp16, 1e-3}, {Wire::int8, 1e-3}, {Wire::int4, 5e-2}};
  double should = 0;
  for (int i = 0; i < kMany; ++i) {
    for (int t = 1; t <= kSteps / 2; ++t) should -= 0.1 * centre(i, t) / kMany;
  }
  for (const auto& [wire, most] : apart) {
    if (std::ranges::count(info().traits.refused_wires, wire, &RefusedWire::wire) > 0) continue;
    // On its own directed edges, modular codes keep the sum if nothing wraps, as it does here.
    if (is_modular(wire) && info().traits.edges == EdgeKind::own) continue;
    SCOPED_TRACE(name_of(wire));
    Options narrow = options();
    narrow.wire = wire;
    virtual_flock(kMany, [&](int i, World& world, VirtualTime& time) {
      const Tensor p = parameter({50});
      Optimizer optimizer({p}, SGD{.lr = 0.1}, narrow, world);
      for (int t = 1; t <= kSteps; ++t) {
        time.sleep(10ms);
        p.mutable_grad() = at::full({50}, t <= kSteps / 2 ? centre(i, t) : 0.0);
        optimizer.step();
      }
      const Tensor own = p.detach().clone();
      const Consensus average(optimizer);
      EXPECT_TRUE(at::allclose(p.detach(), at::full({50}, should), 0, 1e-5)) << p[0] << should;
      if (mixes() && !in_pairs()) {
        EXPECT_TRUE(at::allclose(own, at::full({50}, should), 0, most)) << own[0] << should;
      }
    });
  }
}

// Hubs of a virtual network, one for each channel, whose connections break.
class FragileNetwork {
 public:
  FragileNetwork(int n, const std::shared_ptr<VirtualTime>& time)
      : n_(n), network_(virtual_network(time, 1e6)) {}
  std::unique_ptr<Transport> make(const World& world, const std::string& channel) {
    const std::lock_guard lock(mutex_);
    auto& hub = hubs_[channel];
    if (!hub) hub = std::make_unique<LocalHub>(n_, world.timeouts, network_);
    return hub->endpoint(world.rank);
  }
  void sever(int a, int b) {
    const std::lock_guard lock(mutex_);
    for (auto& [channel, hub] : hubs_) hub->sever(a, b);
  }
  void mend(int a, int b) {
    const std::lock_guard lock(mutex_);
    for (auto& [channel, hub] : hubs_) hub->mend(a, b);
  }

 private:
  const int n_;
  const LocalNetwork network_;
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<LocalHub>> hubs_;
};

TEST_P(SchemeContract, ALostSwapKeepsTheSumOrCountsItsDrift) {
  if (!mixes()) GTEST_SKIP() << "no swaps";
  const auto time = std::make_shared<VirtualTime>(kMany);
  FragileNetwork network(kMany, time);
  std::vector<World> worlds = World::threads(kMany);
  const auto collectives = virtual_collectives(time, [](int, std::size_t) { return Duration(0); });
  std::uint64_t aborted = 0, drifts = 0;  // one worker at a time adds to them
  double drift = 0, most = 0;
  virtual_workers(*time, kMany, [&](int rank) {
    World& world = worlds[static_cast<std::size_t>(rank)];
    world.make_transport = [&](const World& the, const std::string& channel) {
      return network.make(the, channel);
    };
    world.make_collectives = collectives;
    const Tensor x = parameter({1000});  // crosses a link in 4 ms
    Optimizer optimizer({x}, SGD{.lr = 1}, options(), world);
    x.mutable_grad() = at::full({1000}, static_cast<double>(rank * rank));
    optimizer.step();
    x.mutable_grad() = at::zeros_like(x.detach());
    if (rank == 0) {  // breaks and mends the connection at moments of all kinds
      for (int k = 0; k < 100; ++k) {
        time->at(time->now() + 7ms * k, [&] { network.sever(0, 1); });
        time->at(time->now() + 7ms * k + 2ms, [&] { network.mend(0, 1); });
      }
    }
    for (int t = 0; t < 120; ++t) {
      time->sleep(10ms);
      optimizer.step();
    }
    optimizer.wait_for_all();
    {
      const Consensus average(optimizer);
      EXPECT_EQ(average.workers(), kMany);
      drift = std::abs(x.mean().item<double>() + 14.0 / 4);  // 0, 1, 4, 9
      EXPECT_LT(average.distance(), 1e-2);
    }
    const Statistics now = optimizer.statistics();
    aborted += now.aborted + now.late, drifts += now.directed_aborted;
    most = 9;  // the workers were as far apart
    nobody_leaves_yet(optimizer);
  });
  EXPECT_GT(aborted, 0U) << "nothing was lost";
  if (info().traits.sums_gradients) return;
  EXPECT_LT(drift, drifts == 0 ? 1e-4 : most) << drifts;
}

// ---------------------------------------------------------------- state

TEST_P(SchemeContract, GoesOnFromWhatWasSaved) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    flock(kMany, [&](int i, World& world) {
      const Tensor p = parameter({5000}, 0, type), again = parameter({5000}, 0, type);
      const AccumAdamW rule{.lr = 0.01, .window = 3};
      Optimizer optimizer({p}, rule, options(), world);
      train({p}, optimizer, i, 0, 10);
      nobody_leaves_yet(optimizer);
      const OptimizerState saved = copy_of(optimizer.state());
      Optimizer other({again}, rule, options(), world);
      train({again}, other, i, 0, 3);  // something else to forget
      nobody_leaves_yet(other);
      other.set_state(saved);
      const OptimizerState taken = other.state();
      for (const auto& [name, tensor] : saved.tensors)
        EXPECT_TRUE(at::equal(tensor, taken.tensors.at(name))) << name;
      if (in_pairs()) return;  // real clocks do not repeat
      train({p}, optimizer, i, 10, 15);
      train({again}, other, i, 10, 15);
      EXPECT_TRUE(at::equal(p, again)) << "worker " << i;
      EXPECT_TRUE(at::equal(optimizer.weights(p), other.weights(again)));
      nobody_leaves_yet(optimizer);
      nobody_leaves_yet(other);
    });
  }
}

TEST_P(SchemeContract, NamesItsStateAndHowItBegins) {
  flock(kMany, [&](int i, World& world) {
    const Tensor p = parameter({100});
    Optimizer optimizer({p}, SGD{}, options(), world);
    train({p}, optimizer, i, 0, 2);
    nobody_leaves_yet(optimizer);
    const OptimizerState state = optimizer.state();
    std::size_t known = 4;  // model.0.0, options.0, steps, rng
    for (const SchemeState& field : state.of_scheme) {
      const std::string name = field.numbers ? field.name : field.name + ".0.0";
      EXPECT_TRUE(state.tensors.contains(name)) << name;
      ++known;
    }
    EXPECT_EQ(state.tensors.size(), known);
  });
}

// The old group goes on as if there were no new one, which begins with rank 0's values everywhere.
TEST_P(SchemeContract, TakesAParameterGroupInMidRun) {
  std::vector<Tensor> fixed(kMany);
  std::vector<std::uint64_t> rounds(kMany);
  const auto run = [&](bool grows) {
    virtual_flock(kMany, [&](int i, World& world, VirtualTime& time) {
      const Tensor early = parameter({90'000}, 1), late = parameter({70'000}, i == 0 ? 3 : i);
      Optimizer optimizer({early}, Adam{.lr = 0.1}, options(), world);
      for (int t = 0; t < 10; ++t) {
        time.sleep(10ms);
        if (grows && t == 5) optimizer.add_param_group({{late}});
        early.mutable_grad() = early.detach() - centre(i, t);
        if (grows && t > 5) late.mutable_grad() = late.detach() - centre(i, t);
        optimizer.step();
        if (grows && t == 5) {
          EXPECT_TRUE(at::equal(late.detach(), at::full({70'000}, 3.0)));  // no gradient yet
        }
      }
      Tensor& reference = fixed[static_cast<std::size_t>(i)];
      if (!grows) reference = early.detach().clone();
      if (!grows) rounds[static_cast<std::size_t>(i)] = optimizer.statistics().rounds;
      // The clock of gossip and a schedule of several rounds begin anew.
      if (grows && !in_pairs() && schedule_of(options(), kMany, 1).rounds.size() <= 1) {
        EXPECT_TRUE(at::equal(early.detach(), reference)) << "worker " << i;
      }
      EXPECT_EQ(optimizer.parameter_count(), grows ? 160'000 : 90'000);
      if (!in_pairs()) {  // a scheme that sends ahead does so once more
        const std::uint64_t alone = rounds[static_cast<std::size_t>(i)];
        EXPECT_EQ(optimizer.statistics().rounds, grows && alone > 10 ? alone + 1 : alone);
      }
      optimizer.wait_for_all();
      const Consensus average(optimizer);
      EXPECT_EQ(average.workers(), kMany);
      EXPECT_LT(average.distance(), 1);
      for (const Tensor& x : {early, late}) EXPECT_TRUE(at::isfinite(x).all().item<bool>());
    });
  };
  run(false), run(true);
}

// ---------------------------------------------------------------- one worker alone

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
      {
        const c10::AutoGradMode no_gradient(false);
        p.slice(0, 0, 50).fill_(2);
      }
      train({p}, optimizer, 0, 10, 20);
      EXPECT_EQ(optimizer.statistics().committed, 0U);
      const Consensus same(optimizer);  // moves what gossip has into the parameters
      if (type == at::kFloat) return p.detach().clone();
      const Tensor master = optimizer.state().tensors.at("master.0.0").clone();
      EXPECT_TRUE(at::equal(master.to(type), p.detach()));
      return master;
    };
    for (const Rule& each : {Rule(rule), Rule(AccumAdamW{.lr = 0.01, .window = 2})}) {
      const Tensor mine = trained(options(), each), plain = trained({}, each);
      EXPECT_TRUE(in_pairs() ? at::allclose(mine, plain, 1e-5, 1e-6) : at::equal(mine, plain)) << type;
    }
    const Tensor mine = trained(options(), rule);
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
    Options clipped = options();
    clipped.clip = clip;
    Optimizer optimizer(mine, AdamW{.lr = 0.01}, clipped, World::alone());
    Optimizer plain(torchs, AdamW{.lr = 0.01}, options(), World::alone());
    for (int t = 1; t <= 5; ++t) {
      set_gradients(mine, t);
      set_gradients(torchs, t);
      const Tensor before = mine[1].grad().clone();
      torch::nn::utils::clip_grad_norm_(torchs, clip);
      optimizer.step();
      plain.step();
      EXPECT_TRUE(at::equal(mine[1].grad(), before) || !may_skip());  // or the tracked one
    }
    expect_close(mine, torchs, 1e-5);
  }
}

TEST_P(SchemeContract, TakesLossScalingBackBeforeItClipsAndForOneStep) {
  if (!may_skip()) GTEST_SKIP() << "no worker may scale its own gradients";
  const auto scaled = some_parameters(), plain = some_parameters();
  Options clipped = options();
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
    Options careful = options();
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
    const Tensor master = narrow.state().tensors.at("master.0.0"), x = wide.state().tensors.at("model.0.0");
    EXPECT_TRUE(at::equal(master, x.detach())) << type;
  }
}

// Weights are clipped: the changed ones are taken, the others keep every bit.
TEST_P(SchemeContract, TakesNarrowParametersThatWereChangedBetweenSteps) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    at::manual_seed(1);
    const Tensor p = at::randn({400}).to(type).set_requires_grad(true);
    const Tensor g = at::full({400}, 0.3, type).to(at::kFloat);
    Optimizer optimizer({p}, SGD{.lr = 0.01}, options(), World::alone());
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

// ---------------------------------------------------------------- two runs of several workers

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
    return train_virtually({.options = options(),
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

// The rule for uneven data: a worker that is done says so. The others go on without it, with its
// weight on themselves, and the average at the end waits for all.
TEST_P(SchemeContract, WorkersWithDifferentNumbersOfBatchesEndWithoutAHang) {
  if (!mixes()) GTEST_SKIP() << "every step needs all workers";
  flock(kMany, [&](int i, World& world) {
    const Tensor p = parameter({100'000}, i);
    Optimizer optimizer({p}, SGD{.lr = 0.1}, options(), world);
    train({p}, optimizer, i, 0, 4 + 3 * i);
    const Tensor before = p.detach().clone();
    {
      const Consensus average(optimizer);
      EXPECT_EQ(average.workers(), kMany);
    }
    if (in_pairs()) return;  // it goes on with what gossip has by then
    EXPECT_TRUE(at::equal(p.detach(), before));
  });
}

STARLING_EVERY_SCHEME(SchemeContract);

}  // namespace
}  // namespace starling
