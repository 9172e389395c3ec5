// Saved and resumed, the bits are those of a run that has not stopped. Workers are threads.
#include <torch/optim/adagrad.h>
#include <torch/optim/rmsprop.h>

#include "tests/optim/checkpointed.h"
#include "tests/optim/every_scheme.h"
#include "tests/optim/lopsided.h"

namespace starling {
namespace {

using testing::HasSubstr;

void train_until_15(const Setting& s, Run& run, int i) {
  run.set_lr(0.02);
  train(run.net, *run.optimizer, i, 0, 15);
  if (s.kept) Consensus(*run.optimizer).keep();
}

// Writes each worker's file after 40 steps without a stop.
void run_through(const Setting& s, const Folder& folder) {
  flock(s.workers, [&](int i, World& world) {
    Run run(s, world);
    train_until_15(s, run, i);
    train(run.net, *run.optimizer, i, 15, 40);
    run.optimizer->save(folder / ("whole-" + std::to_string(i)));
  });
}

// Compares everything in the files except the random numbers, which the threads of this test share.
void expect_equal_files(const std::string& a, const std::string& b) {
  const SafetensorsReader first(a), second(b);
  EXPECT_EQ(first.metadata(), second.metadata());
  ASSERT_EQ(first.tensors().size(), second.tensors().size());
  for (const TensorInfo& tensor : first.tensors()) {
    std::vector<std::byte> x(tensor.bytes()), y(tensor.bytes());
    first.read(tensor, x);
    ASSERT_NE(second.find(tensor.name), nullptr);
    second.read(*second.find(tensor.name), y);
    EXPECT_TRUE(tensor.name == "rng" || x == y) << tensor.name;
  }
}

// A state without values differs from the state with values only in the tensors of a parameter's
// size, which have no memory.
void expect_outline(const Optimizer& optimizer) {
  const OptimizerState all = optimizer.state(), outline = optimizer.state(/*values=*/false);
  EXPECT_EQ(outline.metadata, all.metadata);
  ASSERT_EQ(outline.tensors.size(), all.tensors.size());
  for (const auto& [name, tensor] : outline.tensors) {
    const Tensor& full = all.tensors.at(name);
    EXPECT_EQ(tensor.scalar_type(), full.scalar_type()) << name;
    EXPECT_EQ(tensor.sizes(), full.sizes()) << name;
    EXPECT_EQ(tensor.strides(), full.strides()) << name;
    const std::string kind = name.substr(0, name.find('.'));
    const auto is_number = [&](const SchemeState& of) { return of.name == kind && of.numbers; };
    const bool is_kept =
        std::ranges::count(std::array{"model", "options", "steps", "rng", "loss_scale"}, kind) > 0 ||
        std::ranges::any_of(all.of_scheme, is_number);
    EXPECT_EQ(tensor.is_meta(), !is_kept) << name;
    EXPECT_TRUE(!is_kept || name == "rng" || at::equal(tensor, full)) << name;
  }
}

void check_resume(const Setting& s) {
  const Folder folder;
  run_through(s, folder);
  flock(s.workers, [&](int i, World& world) {  // 25, saved at 15
    Run run(s, world);
    train_until_15(s, run, i);
    EXPECT_TRUE(save_checkpoint(*run.optimizer, folder / "c", {.step = 15, .seconds = 1.0 + i}));
    expect_outline(*run.optimizer);
    train(run.net, *run.optimizer, i, 15, 25);
    // Back to step 15 in the same optimizer, whose rounds are farther on.
    load_checkpoint(*run.optimizer, Checkpoint(folder / "c"));
    train(run.net, *run.optimizer, i, 15, 40);
    run.optimizer->save(folder / ("back-" + std::to_string(i)));
  });
  const Checkpoint checkpoint(folder / "c");
  EXPECT_EQ(checkpoint.manifest().step, 15);
  EXPECT_EQ(checkpoint.manifest().seconds, s.workers);
  flock(s.workers, [&](int i, World& world) {  // another 25
    Run run(s, world);
    load_checkpoint(*run.optimizer, checkpoint);
    if (s.options.mean_every == 0 && !s.kept) {
      EXPECT_EQ(run.net.count.item<std::int64_t>(), 15 * (1 + i));
    }
    train(run.net, *run.optimizer, i, 15, 40);
    expect_undisturbed(*run.optimizer);
    run.optimizer->save(folder / ("resumed-" + std::to_string(i)));
  });
  for (int i = 0; i < s.workers; ++i) {
    const std::string rank = std::to_string(i);
    expect_equal_files(folder / ("whole-" + rank), folder / ("resumed-" + rank));
    expect_equal_files(folder / ("whole-" + rank), folder / ("back-" + rank));
  }
}

TEST(Checkpoint, FortyStepsAre15And25InTheMiddleOfAnAccumulationWindow) {
  check_resume({AccumAdam{.lr = 0.01, .window = 4}, {.topology = "base-2"}, 3});
}

TEST(Checkpoint, EveryKindOfRuleAndScheduleGoesOn) {
  check_resume({AccumAdamW{.lr = 0.01, .window = 7}, {.topology = "ring"}, 3});
  check_resume({SGD{.lr = 0.01, .momentum = 0.9}, {.topology = "one-peer-exponential", .block_bytes = 1}, 4});
  check_resume({SGD{.lr = 0.01}, {.topology = "one-peer-exponential-directed"}, 3});
  check_resume({AdamW{.lr = 0.01}, {.topology = "base-2"}, 1});
  check_resume({AdamW{.lr = 0.01}, {.topology = "base-2", .scheme = "atc"}, 3});
  check_resume({Adam{.lr = 0.01}, {.scheme = "all-reduce"}, 3});
}

TEST(Checkpoint, MuonsMatricesGoOn) {
  const Muon muon{.lr = 0.01};
  for (const SchemeInfo* const info : schemes()) {
    if (info->traits.path == Path::pairs) continue;
    check_resume({.rule = muon, .options = options_of(*info), .workers = 3});
  }
  check_resume({.rule = muon, .options = {.topology = "base-2"}, .workers = 3, .narrow = true});
  check_resume({.rule = muon, .options = kNodesOfTwo, .workers = 4});
}

// Parameters, masters and the scheme's own state. Gossip's clocks do not repeat.
TEST(Checkpoint, NarrowParametersGoOn) {
  for (const SchemeInfo* const info : schemes()) {
    if (info->traits.path == Path::pairs) continue;
    check_resume({.rule = AccumAdamW{.lr = 0.01, .window = 4},
                  .options = options_of(*info),
                  .workers = 3,
                  .narrow = true});
  }
  check_resume({.rule = SGD{.lr = 0.01}, .options = {.wire = Wire::bf16}, .workers = 2, .narrow = true});
  check_resume({.rule = AdamW{.lr = 0.01},
                .options = {.topology = "ring", .wire = Wire::int8, .block_bytes = 1},
                .workers = 3,
                .narrow = true});
}

// The scale grows every seventh step. The gradients of this test are not scaled.
TEST(Checkpoint, LossScalesGoOn) {
  check_resume({.rule = SGD{.lr = 0.01, .momentum = 0.5},
                .options = {.loss_scaling = LossScaling{.initial = 1, .grow_every = 7}},
                .workers = 3,
                .narrow = true});
  const Folder folder;
  Optimizer scaled({parameter({2})}, SGD{}, {.loss_scaling = LossScaling{.initial = 4}}, World::alone());
  Optimizer plain({parameter({2})}, SGD{}, {}, World::alone());
  scaled.save(folder / "a");
  plain.save(folder / "b");
  EXPECT_THAT(refusal([&] { plain.load(folder / "a"); }),
              HasSubstr("tensor \"loss_scale\" is not one of this"));
  EXPECT_THAT(refusal([&] { scaled.load(folder / "b"); }), HasSubstr("there is no tensor \"loss_scale\""));
}

// Blocks are sent again on the same grids. The next grids follow from the same measurements.
TEST(Checkpoint, ModularCodesGoOn) {
  for (const Wire wire : {Wire::int8, Wire::int4}) {
    check_resume({AdamW{.lr = 0.01}, {.topology = "base-2", .wire = wire}, 3});
    check_resume(
        {SGD{.lr = 0.01, .momentum = 0.9}, {.topology = "complete", .wire = wire, .block_bytes = 1}, 3});
    check_resume({AdamW{.lr = 0.01}, {.topology = "ring", .scheme = "atc", .wire = wire}, 3});
    check_resume({{},
                  {.topology = "base-2", .wire = wire},
                  3,
                  made<torch::optim::Adam>(torch::optim::AdamOptions(0.01))});
  }
  check_resume({.rule = AdamW{.lr = 0.01},  // in the middle of a cycle of two rounds
                .options = {.scheme = "ceca-2p", .wire = Wire::int8},
                .workers = 3,
                .narrow = true});
}

// The masks continue where they were, not from the first round.
TEST(Checkpoint, RandomKGoesOn) {
  check_resume({AdamW{.lr = 0.01}, {.topology = "base-2", .one_in = 5, .block_bytes = 1}, 3});
  check_resume({AdamW{.lr = 0.01}, {.topology = "ring", .scheme = "atc", .one_in = 7}, 3});
  check_resume({SGD{.lr = 0.01}, {.topology = "complete", .wire = Wire::int8, .one_in = 3}, 3});
  check_resume({.rule = SGD{.lr = 0.01},
                .options = {.topology = "base-2", .wire = Wire::bf16, .one_in = 4},
                .workers = 2,
                .narrow = true});
  check_resume({{},
                {.topology = "base-2", .one_in = 3},
                3,
                made<torch::optim::Adam>(torch::optim::AdamOptions(0.01))});
}

// The steps since the last mean count on: 15, where it is saved, is in the middle.
TEST(Checkpoint, MeansGoOn) {
  check_resume({AdamW{.lr = 0.01}, {.topology = "ring", .mean_every = 4}, 3});
  check_resume({SGD{.lr = 0.01, .momentum = 0.9},
                {.topology = "base-2", .scheme = "atc", .one_in = 3, .mean_every = 7},
                3});
  check_resume({.rule = SGD{.lr = 0.01},
                .options = {.topology = "base-2", .wire = Wire::bf16, .mean_every = 40},
                .workers = 2,
                .narrow = true});
  check_resume({{},
                {.topology = "base-2", .mean_every = 4},
                3,
                made<torch::optim::Adam>(torch::optim::AdamOptions(0.01))});
}

TEST(Checkpoint, WhatWasKeptGoesOn) {
  for (const SchemeInfo* const info : schemes()) {
    if (info->traits.path == Path::pairs) continue;
    check_resume({.rule = AdamW{.lr = 0.01}, .options = options_of(*info), .workers = 3, .kept = true});
  }
}

// So do the local steps since the last exchange, and the outer optimizer.
TEST(Checkpoint, LocalAndOuterStepsGoOn) {
  check_resume({AdamW{.lr = 0.01}, {.topology = "ring", .every = 4}, 3});
  check_resume({AdamW{.lr = 0.01}, {.topology = "ring", .wire = Wire::int8, .every = 7}, 3});
  check_resume({.rule = AdamW{.lr = 0.01},
                .options = {.topology = "base-2", .scheme = "dsgd-ac", .wire = Wire::bf16, .every = 4},
                .workers = 3,
                .narrow = true});
  check_resume({SGD{.lr = 0.01, .momentum = 0.9},
                {.topology = "base-2", .scheme = "atc", .every = 4, .mean_every = 8, .outer = "sgd"},
                3});
  check_resume({AdamW{.lr = 0.01}, {.scheme = "local", .mean_every = 4, .outer = "nesterov"}, 3});
  check_resume({AdamW{.lr = 0.01},  // 15 is in the warm-up
                {.scheme = "local",
                 .mean_every = 4,
                 .outer = "nesterov",
                 .outer_warmup = 20,
                 .outer_lr_at = "20:0 40:1",
                 .outer_momentum_at = "20:0.95 28:0.95 28:0.5"},
                3});
  check_resume({SGD{.lr = 0.01, .momentum = 0.9},  // 15 is after it
                {.topology = "base-2",
                 .scheme = "atc",
                 .every = 2,
                 .mean_every = 6,
                 .outer = "sgd",
                 .outer_warmup = 6,
                 .outer_lr_at = "6:0.1 30:1"},
                3});
  check_resume({.rule = AdamW{.lr = 0.01},
                .options = {.topology = "ring", .scheme = "atc", .every = 4, .outer = "sgd"},
                .workers = 3,
                .narrow = true});
  check_resume({AdamW{.lr = 0.01}, {.topology = "ring", .scheme = "gasloc", .every = 4}, 3});
}

// Weights that differ; and a push in flight, of the parameters of some steps before 15.
TEST(Checkpoint, PushesGoOn) {
  const Lopsided lopsided;
  for (const std::int64_t staleness : {0, 1}) {
    const Options options{.topology = lopsided.path(), .scheme = {"push-sum", {{"staleness", staleness}}}};
    for (const bool narrow : {false, true})
      check_resume({.rule = AdamW{.lr = 0.01}, .options = options, .workers = Lopsided::n, .narrow = narrow});
  }
  for (const std::int64_t staleness : {2, 4}) {
    Options options{.topology = "n-peer-exponential-1", .scheme = {"push-sum", {{"staleness", staleness}}}};
    check_resume({SGD{.lr = 0.01, .momentum = 0.9}, options, 3});
    options.wire = Wire::bf16;
    check_resume({.rule = AdamW{.lr = 0.01}, .options = options, .workers = 3, .narrow = true});
  }
}

// The copies of both ends of each edge are saved and resumed too.
TEST(Checkpoint, ChocoGoesOn) {
  check_resume({AdamW{.lr = 0.01}, {.topology = "ring", .scheme = "choco", .one_in = 6}, 3});
  check_resume(
      {SGD{.lr = 0.01, .momentum = 0.9}, {.topology = "complete", .scheme = "choco", .block_bytes = 1}, 4});
  check_resume(
      {.rule = AccumAdam{.lr = 0.01, .window = 4},
       .options = {.topology = "ring", .scheme = {"choco", {{"gamma", 0.1}}}, .one_in = 30, .block_bytes = 1},
       .workers = 3,
       .narrow = true});
  check_resume(  // it sends in some rounds
      {SGD{.lr = 0.01, .momentum = 0.9, .nesterov = true},
       {.topology = "ring", .scheme = {"choco", {{"trigger", 4e7}}}, .one_in = 6, .every = 2},
       3});
}

// So are what was not sent, and the turns of the samples.
TEST(Checkpoint, FewValuesGoOn) {
  check_resume(
      {AdamW{.lr = 0.01}, {.topology = "complete", .scheme = "sparse-loco", .one_in = 6, .every = 4}, 3});
  check_resume({.rule = AccumAdam{.lr = 0.01, .window = 4},
                .options = {.topology = "base-2",
                            .scheme = {"sparse-loco", {{"sent_values", "fp32"}}},
                            .one_in = 30,
                            .block_bytes = 1},
                .workers = 3,
                .narrow = true});
  check_resume({{},
                {.topology = "ring", .scheme = "sparse-loco", .one_in = 3, .every = 2},
                3,
                made<torch::optim::Adam>(torch::optim::AdamOptions(0.01))});
  check_resume({SGD{.lr = 0.01}, {.scheme = "demo", .one_in = 8}, 3});
  check_resume({.rule = AdamW{.lr = 0.01},
                .options = {.scheme = {"demo", {{"signs", "off"}}}, .one_in = 40, .block_bytes = 1},
                .workers = 3,
                .narrow = true});
}

// Each worker has the state of its own blocks only. `large` lies in blocks of both workers of a
// node.
TEST(Checkpoint, AHierarchyGoesOn) {
  check_resume({AccumAdamW{.lr = 0.01, .window = 4}, kNodesOfTwo, 4});
  Options options = kNodesOfTwo;
  options.topology = "one-peer-exponential", options.wire = Wire::int8;
  check_resume({SGD{.lr = 0.01, .momentum = 0.9}, options, 8});
  options.wire = Wire::fp32, options.one_in = 3;
  check_resume({AdamW{.lr = 0.01}, options, 4});
}

// There are fewer blocks than workers in a node.
TEST(Checkpoint, AWorkerWithoutAShareGoesOn) {
  const Folder folder;
  const auto ends = results_of(4, [&](int i, World& world) -> Tensor {
    const Tensor x = parameter({10});
    Optimizer optimizer({x}, AdamW{.lr = 0.1}, kNodesOfTwo, world);
    train({x}, optimizer, i, 0, 5);
    EXPECT_TRUE(save_checkpoint(optimizer, folder.path, {.step = 5}));
    train({x}, optimizer, i, 0, 5);
    return x.detach();
  });
  EXPECT_EQ(SafetensorsReader(folder / "step-5/worker-1.safetensors").find("m.0.0"), nullptr);
  const auto resumed = results_of(4, [&](int i, World& world) -> Tensor {
    const Tensor x = parameter({10});
    Optimizer optimizer({x}, AdamW{.lr = 0.1}, kNodesOfTwo, world);
    load_checkpoint(optimizer, Checkpoint(folder.path));
    train({x}, optimizer, i, 0, 5);
    return x.detach();
  });
  for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(at::equal(ends[i], resumed[i])) << i;
  EXPECT_FALSE(at::equal(ends[0], ends[2]));
}

// --- asynchronous gossip: runs do not repeat their bits, but a saved state keeps them ---

void expect_equal(const OptimizerState& a, const OptimizerState& b) {
  EXPECT_EQ(a.metadata, b.metadata);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, tensor] : a.tensors) {
    // The threads of this test share torch's random numbers.
    EXPECT_TRUE(name == "rng" || at::equal(tensor, b.tensors.at(name))) << name;
  }
}

void check_gossip_resume(const Setting& s) {
  const Folder folder;
  std::vector<OptimizerState> saved(static_cast<std::size_t>(s.workers));
  flock(s.workers, [&](int i, World& world) {
    Run run(s, world);
    train(run.net, *run.optimizer, i, 0, 100);
    EXPECT_TRUE(save_checkpoint(*run.optimizer, folder.path, {.step = 100}));
    OptimizerState& mine = saved[static_cast<std::size_t>(i)];
    mine = copy_of(run.optimizer->state());  // it stands still
    expect_outline(*run.optimizer);
    train(run.net, *run.optimizer, i, 100, 130);
    load_checkpoint(*run.optimizer, Checkpoint(folder.path));  // in the same optimizer
    expect_equal(run.optimizer->state(), mine);
    nobody_leaves_yet(*run.optimizer);
  });
  EXPECT_EQ(saved[0].tensors.contains("x_tilde.large"), s.options.scheme.name == "a2cid2");
  EXPECT_EQ(saved[0].tensors.contains("b.large"), !s.inner);
  EXPECT_GT(saved[0].tensors.at("clock").const_data_ptr<double>()[0], 100);
  flock(s.workers, [&](int i, World& world) {
    Run run(s, world);
    load_checkpoint(*run.optimizer, Checkpoint(folder.path));
    expect_equal(run.optimizer->state(), saved[static_cast<std::size_t>(i)]);
    std::int64_t without = 1;
    for (int t = 100; without != 0; t += 20) {  // until all have averaged
      train(run.net, *run.optimizer, i, t, t + 20);
      without = run.optimizer->statistics().rounds == 0 ? 1 : 0;
      run.optimizer->maximum({&without, 1});
    }
  });
}

TEST(Checkpoint, GossipGoesOnWithWhatWasSaved) {
  for (const std::string scheme : {"a2cid2", "ad-psgd"}) {
    const Options options{.topology = "ring", .scheme = {scheme, {{"rate", 2}}}};
    check_gossip_resume({AccumAdamW{.lr = 0.01, .window = 4}, options, 3});
    check_gossip_resume({{}, options, 3, made<torch::optim::Adam>(torch::optim::AdamOptions(0.01))});
  }
}

// Workers reach the checkpoint at different times, while others still average. Even so, all states
// are of one moment.
TEST(Checkpoint, GossipsStatesKeepTheSum) {
  constexpr int n = 4;
  for (const std::string scheme : {"a2cid2", "ad-psgd"}) {
    const Options options{.topology = "ring", .scheme = {scheme, {{"rate", 4}}}};
    const Folder folder;
    // The sum of all x, or of the means of x and x~.
    const auto sum_of = [&](int step) {
      double sum = 0;
      for (int i = 0; i < n; ++i) {
        Checkpoint at(folder / ("step-" + std::to_string(step)));
        const SafetensorsReader file(at.verified(i));
        const bool tilde = file.find("x_tilde.0.0") != nullptr;
        for (const std::string name : {"model.0.0", "x_tilde.0.0"}) {
          if (file.find(name) == nullptr) continue;
          for (const float value : values_in<float>(file, name)) sum += double{value} / (tilde ? 2 : 1);
        }
      }
      return sum;
    };
    const auto gossip = [](const Tensor& x, Optimizer& optimizer, int steps) {
      x.mutable_grad() = at::zeros({1000});
      for (int t = 0; t < steps; ++t) {
        optimizer.step();
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    };
    flock(n, [&](int i, World& world) {
      const Tensor x = parameter({1000}, 1);
      Optimizer optimizer({x}, SGD{.lr = 0.1}, options, world);
      gossip(x, optimizer, 20);
      for (int step = 1; step <= 5; ++step) {
        x.detach().add_((i + step) % 2 == 0 ? 1 : -1);  // so that averagings move something
        gossip(x, optimizer, 2 + 3 * ((i + step) % n));
        EXPECT_TRUE(save_checkpoint(optimizer, folder.path, {.step = step}, 9));
      }
    });
    for (int step = 1; step <= 5; ++step) EXPECT_NEAR(sum_of(step), 1000 * n, 0.05) << scheme << step;
    flock(n, [&](int i, World& world) {
      const Tensor x = parameter({1000}, 9);
      Optimizer optimizer({x}, SGD{.lr = 0.1}, options, world);
      load_checkpoint(optimizer, Checkpoint(folder / "step-1"));
      gossip(x, optimizer, 30 + 10 * i);
      EXPECT_TRUE(save_checkpoint(optimizer, folder.path, {.step = 10}, 9));
    });
    EXPECT_NEAR(sum_of(10), 1000 * n, 0.05) << scheme;
  }
}

TEST(Checkpoint, EachOfTorchsOptimizersGoesOn) {
  using namespace torch::optim;
  const Options cta{.topology = "base-2"}, atc{.topology = "base-2", .scheme = "atc"};
  const auto around = [](const Options& options, const Inner& inner) {
    check_resume({.rule = {}, .options = options, .workers = 3, .inner = inner});
  };
  around(cta, made<torch::optim::SGD>(SGDOptions(0.01).momentum(0.9).dampening(0.5).weight_decay(0.01)));
  around(atc, made<torch::optim::SGD>(SGDOptions(0.01).momentum(0.9).nesterov(true)));
  around(cta, made<torch::optim::SGD>(SGDOptions(0.01)));  // which keeps no state
  around(cta, made<torch::optim::Adam>(AdamOptions(0.01).betas({0.8, 0.99}).amsgrad(true)));
  around(atc, made<torch::optim::AdamW>(AdamWOptions(0.01).weight_decay(0.1)));
  around(cta, made<torch::optim::Adagrad>(AdagradOptions(0.01).lr_decay(0.1).initial_accumulator_value(0.3)));
  around(cta, made<torch::optim::RMSprop>(RMSpropOptions(0.01).momentum(0.5).centered(true)));
  around(atc, made<torch::optim::RMSprop>(RMSpropOptions(0.01)));
}

TEST(Checkpoint, TorchsRandomNumbersGoOn) {
  const Folder folder;
  Optimizer optimizer({parameter({2}, 1)}, SGD{}, {}, World::alone());
  optimizer.save(folder / "a");
  const Tensor next = at::randn({9});
  optimizer.load(folder / "a");
  EXPECT_TRUE(at::equal(at::randn({9}), next));
}

}  // namespace
}  // namespace starling
