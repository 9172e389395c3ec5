#include "starling/train/ema.h"

#include <fmt/format.h>

#include "starling/checkpoint/consensus.h"
#include "starling/core/error.h"
#include "starling/optim/checkpoint.h"
#include "tests/optim/flock.h"

namespace starling {
namespace {

using at::Tensor;

constexpr double kDecay = 0.9;

struct Net : torch::nn::Module {
  explicit Net(at::ScalarType type = at::kFloat) {
    x = register_parameter("x", at::full({100}, 1.0, type));
    mean = register_buffer("mean", at::full({3}, 5.0));
    count = register_buffer("count", at::zeros({}, at::kLong));
  }
  void set(double value) {
    const c10::AutoGradMode no_gradient(false);
    x.fill_(value);
    mean.fill_(10 * value);
    count.add_(1);
  }
  Tensor x, mean, count;
};

Tensor value_of(const Ema& ema, const std::string& name) {
  for (const auto& [key, tensor] : ema.tensors()) {
    if (key == name) return tensor;
  }
  return {};
}

TEST(Ema, IsTheEquation) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    Net net(type);
    Ema ema(net, kDecay);
    double x = 1, mean = 5;
    for (int t = 0; t < 30; ++t) {
      const double value = at::full({}, std::sin(t), type).item<double>();
      net.set(value);
      ema.update();
      x = kDecay * x + (1 - kDecay) * value;
      mean = kDecay * mean + (1 - kDecay) * 10 * value;
    }
    EXPECT_TRUE(is_all(value_of(ema, "ema.x"), x)) << value_of(ema, "ema.x")[0] << x;
    EXPECT_EQ(value_of(ema, "ema.x").scalar_type(), at::kFloat);
    EXPECT_NEAR(value_of(ema, "ema.mean")[0].item<double>(), mean, type == at::kFloat ? 1e-5 : 0.05);
    EXPECT_EQ(ema.tensors().size(), 2U);  // a counter has no moving average
  }
}

// Workers whose models are apart: the average of their moving averages is seen within the scope of
// a Consensus, and each worker's own values are back behind it.
TEST(Ema, ShowsTheAverageOfAllWorkers) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    flock(kWorkers, [&](int i, World& world) {
      Net net(type);
      Optimizer optimizer(net, SGD{.lr = 0.1}, {.topology = "ring"}, world);
      Ema ema(net, kDecay);
      double mean = 0;
      for (int j = 0; j < kWorkers; ++j) mean += (kDecay * 1 + (1 - kDecay) * (3.0 + j)) / kWorkers;
      net.set(3.0 + i);
      ema.update();
      {
        const Consensus average(optimizer);
        ema.show_average(optimizer);
        EXPECT_TRUE(
            at::allclose(net.x.to(at::kFloat), at::full({100}, mean), 0, type == at::kFloat ? 1e-6 : 0.01))
            << net.x[0];
        EXPECT_NEAR(net.mean[0].item<double>(), 5 * kDecay + (1 - kDecay) * 40, 1e-5);
      }
      EXPECT_TRUE(is_all(net.x, 3.0 + i));
      EXPECT_TRUE(is_all(net.mean, 30.0 + 10 * i));
      EXPECT_TRUE(is_all(value_of(ema, "ema.x"), kDecay + (1 - kDecay) * (3.0 + i)));
      // A test between two steps leaves the run as it is.
      net.x.mutable_grad() = at::zeros_like(net.x);
      optimizer.step();
      nobody_leaves_yet(optimizer);
    });
  }
}

// A wrong value would stay for many steps.
TEST(Ema, LeavesOutWhatIsNotFiniteAndWithAGuardWhatJumps) {
  struct Case {
    double to, jump_guard;
    bool taken;
  };
  for (const auto& [to, jump_guard, taken] : {Case{NAN, 0, false},
                                              {INFINITY, 0, false},
                                              {NAN, 20, false},
                                              {1e6, 20, false},
                                              {1e6, 0, true},
                                              {20, 20, true}}) {
    SCOPED_TRACE(fmt::format("to {}, guard {}", to, jump_guard));
    LogLines said;
    Net net;
    Ema ema(net, kDecay, jump_guard, said.log());
    const auto step = [&](int t) { net.set(1 + 0.1 * t); };
    for (int t = 0; t < 40; ++t) {
      step(t);
      EXPECT_TRUE(ema.update()) << t;
    }
    const Tensor x = value_of(ema, "ema.x").clone(), mean = value_of(ema, "ema.mean").clone();
    step(40);
    net.x.detach()[7] = to;
    EXPECT_EQ(ema.update(), taken);
    EXPECT_EQ(at::equal(value_of(ema, "ema.x"), x), !taken);
    EXPECT_EQ(at::equal(value_of(ema, "ema.mean"), mean), !taken);
    EXPECT_EQ(said.text().find("the moving average leaves out a step") != std::string::npos, !taken);
    step(41);
    EXPECT_TRUE(ema.update());
    EXPECT_EQ(said.all().size(), taken ? 0U : 1U);
  }
}

TEST(Ema, FollowsALastingChange) {
  LogLines said;
  Net net;
  Ema ema(net, kDecay, 20, said.log());
  for (int t = 0; t < 40; ++t) {
    net.set(1 + 0.1 * t);
    EXPECT_TRUE(ema.update());
  }
  net.set(1e6);
  for (std::size_t t = 1; t < UsualDistance::kEnough; ++t) EXPECT_FALSE(ema.update()) << t;
  EXPECT_TRUE(ema.update());
  EXPECT_TRUE(ema.update());
  EXPECT_EQ(said.all().size(), 1U);
}

TEST(Ema, ABufferThatIsNotFiniteIsLeftOutAlone) {
  Net net;
  Ema ema(net, kDecay);
  net.set(3);
  net.mean.fill_(NAN);
  EXPECT_TRUE(ema.update());
  EXPECT_TRUE(is_all(value_of(ema, "ema.x"), kDecay + (1 - kDecay) * 3));
  EXPECT_TRUE(is_all(value_of(ema, "ema.mean"), 5));
}

TEST(Ema, AWorkerWhoseAverageIsNotFiniteDoesNotCount) {
  flock(kWorkers, [&](int i, World& world) {
    LogLines warned;
    world.log = warned.log();
    Net net;
    Optimizer optimizer(net, SGD{.lr = 0.1}, {.topology = "ring"}, world);
    Ema ema(net, kDecay);
    net.set(3.0 + i);
    ema.update();
    if (i == 2) value_of(ema, "ema.x").fill_(NAN);  // as a state from elsewhere may be
    net.set(1);
    {
      const Consensus average(optimizer);
      ema.show_average(optimizer);
      EXPECT_TRUE(at::allclose(net.x, at::full({100}, kDecay + (1 - kDecay) * 3.5))) << net.x[0];
    }
    EXPECT_EQ(warned.text().find("moving average") != std::string::npos, i == 2) << warned.text();
    nobody_leaves_yet(optimizer);
  });
}

TEST(Ema, IsInTheCheckpointAndIsItsAverageModel) {
  const Folder folder;
  std::vector<Tensor> saved(kWorkers);
  flock(kWorkers, [&](int i, World& world) {
    Net net;
    Optimizer optimizer(net, SGD{.lr = 0.1}, {.topology = "ring"}, world);
    Ema ema(net, kDecay);
    optimizer.add_to_state(ema.tensors());
    net.set(3.0 + i);
    ema.update();
    EXPECT_TRUE(save_checkpoint(optimizer, folder.path, {.step = 1}));
    const Tensor then = value_of(ema, "ema.x").clone();
    net.set(-100);
    ema.update();
    EXPECT_FALSE(at::equal(value_of(ema, "ema.x"), then));
    load_checkpoint(optimizer, Checkpoint(folder.path));
    EXPECT_TRUE(at::equal(value_of(ema, "ema.x"), then));
    saved[static_cast<std::size_t>(i)] = then;
  });
  const AverageModel model(Checkpoint(folder.path), LogLines().log());
  for (const TensorInfo& tensor : model.tensors()) {
    if (tensor.name != "x") continue;
    const std::vector<std::byte> bytes = model.read(tensor);
    const auto* const values = reinterpret_cast<const float*>(bytes.data());
    const Tensor mean = (saved[0] + saved[1] + saved[2]) / 3;
    EXPECT_NEAR(values[7], mean[7].item<double>(), 1e-6);
  }
  EXPECT_EQ(model.tensors().size(), 3U);

  // An optimizer without it does not take such a state, and the other way round.
  Net net;
  Optimizer plain(net, SGD{.lr = 0.1}, {}, World::alone());
  const std::string file = Checkpoint(folder.path).verified(0);
  EXPECT_THAT(refusal([&] { plain.load(file); }),
              testing::HasSubstr("tensor \"ema.mean\" is not one of this optimizer"));
  plain.save(folder / "plain");
  Ema ema(net, kDecay);
  plain.add_to_state(ema.tensors());
  plain.load(file);
  EXPECT_TRUE(at::equal(value_of(ema, "ema.x"), saved[0]));
  EXPECT_THAT(refusal([&] { plain.load(folder / "plain"); }),
              testing::HasSubstr("there is no tensor \"ema."));
  EXPECT_TRUE(at::equal(value_of(ema, "ema.x"), saved[0]));
  EXPECT_EQ(refusal<UsageError>([&] { plain.add_to_state({{"model.x", net.x}}); }),
            "add_to_state: the state has a tensor \"model.x\" already");
}

}  // namespace
}  // namespace starling
