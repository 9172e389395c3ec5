// Saving and resuming: the bits are those of a run that has not stopped. Workers are threads.
#include "starling/optim/checkpoint.h"

#include <cstring>

#include <ATen/Context.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include "tests/checkpoint/folder.h"
#include "tests/eventually.h"
#include "tests/optim/every_scheme.h"

namespace starling {
namespace {

using at::Tensor;
using testing::HasSubstr;

// Several blocks, unusual strides, a frozen parameter, buffers of both kinds, a parameter that
// rarely has a gradient, and one whose first gradient comes after step 20.
struct Net : torch::nn::Module {
  Net() {
    image =
        register_parameter("image", at::full({4, 3, 5, 5}, 0.3).contiguous(at::MemoryFormat::ChannelsLast));
    large = register_parameter("large", at::full({150'001}, 0.1));
    seldom = register_parameter("seldom", at::full({7}, -0.2));
    late = register_parameter("late", at::full({2, 2}, 0.7));
    frozen = register_parameter("frozen", at::full({2}, 3.0), false);
    mean = register_buffer("mean", at::zeros({3}));
    count = register_buffer("count", at::zeros({}, at::kLong));
  }
  Tensor image, large, seldom, late, frozen, mean, count;
};

// Steps from+1 .. to of worker i. Gradients depend on the step, the worker and the values before.
void train(Net& net, Optimizer& optimizer, int i, int from, int to) {
  for (int t = from + 1; t <= to; ++t) {
    const double centre = std::sin(1.0 + i + 0.3 * t);
    net.image.mutable_grad() = net.image.detach() * 1.5 - centre;
    net.large.mutable_grad() = net.large.detach() + centre;
    net.seldom.mutable_grad() = (t + i) % 3 == 0 ? net.seldom.detach() - centre : Tensor();
    net.late.mutable_grad() = t > 20 ? net.late.detach() - centre : Tensor();
    optimizer.step();
    const c10::AutoGradMode no_gradient(false);
    net.mean.add_(centre);
    net.count.add_(1 + i);
  }
}

// No exchange was lost.
void expect_undisturbed(Optimizer& optimizer) {
  EXPECT_EQ(optimizer.statistics().aborted, 0U);
  nobody_leaves_yet(optimizer);
}

using Inner = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<Tensor>)>;

struct Setting {
  Rule rule;
  Options options;
  int workers;
  Inner inner{};        // in place of the rule: one of torch's optimizers
  bool narrow = false;  // some parameters in bf16 and fp16
};

struct Run {
  Run(const Setting& s, const World& world) {
    if (s.narrow) {
      net.image.set_data(net.image.to(at::kBFloat16));
      net.large.set_data(net.large.to(at::kHalf));
      net.late.set_data(net.late.to(at::kBFloat16));
      net.mean.set_data(net.mean.to(at::kBFloat16));
    }
    if (s.inner) {
      inner = s.inner({net.image, net.large, net.seldom, net.late});
      optimizer = std::make_unique<Optimizer>(net, *inner, s.options, world);
    } else {
      optimizer = std::make_unique<Optimizer>(net, s.rule, s.options, world);
    }
  }
  void set_lr(double lr) {  // as a scheduler does
    (inner ? *inner : *optimizer).param_groups()[0].options().set_lr(lr);
  }
  Net net;
  std::unique_ptr<torch::optim::Optimizer> inner;
  std::unique_ptr<Optimizer> optimizer;
};

// Writes each worker's file after 40 steps without a stop.
void run_through(const Setting& s, const Folder& folder) {
  flock(s.workers, [&](int i, World& world) {
    Run run(s, world);
    run.set_lr(0.02);
    train(run.net, *run.optimizer, i, 0, 40);
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
    run.set_lr(0.02);
    train(run.net, *run.optimizer, i, 0, 15);
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
    EXPECT_EQ(run.net.count.item<std::int64_t>(), 15 * (1 + i));
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

Run alone(bool narrow) {
  return {{.rule = Adam{}, .options = {}, .workers = 1, .narrow = narrow}, World::alone()};
}

TEST(Checkpoint, AMasterIsSavedBesideItsParameterAlone) {
  const Folder folder;
  alone(true).optimizer->save(folder / "a");
  const SafetensorsReader file(folder / "a");
  EXPECT_EQ(file.find("model.large")->dtype, "F16");
  for (const char* name : {"master.large", "master.image", "m.large"})
    EXPECT_EQ(file.find(name)->dtype, "F32");
  for (const char* name : {"master.seldom", "master.frozen", "master.mean"})
    EXPECT_EQ(file.find(name), nullptr) << name;
  EXPECT_THAT(refusal([&] { alone(false).optimizer->load(folder / "a"); }),
              HasSubstr("tensor \"model.image\" is BF16 [4, 3, 5, 5], this optimizer's is F32 [4, 3, 5, 5]"));
}

// Returns an Inner that makes this class with these options.
template <class O, class TheOptions>
Inner made(const TheOptions& options) {
  return [options](std::vector<Tensor> parameters) {
    return std::make_unique<O>(std::move(parameters), options);
  };
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
}

const Options kNodesOfTwo{.hierarchy = "node", .workers_per_node = 2};

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

TEST(Checkpoint, ANodesWorkersShareOneState) {
  const Folder folder;
  flock(4, [&](int i, World& world) {
    Net net;
    Optimizer optimizer(net, Adam{.lr = 0.01}, kNodesOfTwo, world);
    train(net, optimizer, i, 0, 3);
    EXPECT_TRUE(save_checkpoint(optimizer, folder.path, {.step = 3}));
  });
  std::map<std::string, std::int64_t> values;  // of both workers of the first node
  for (const int i : {0, 1}) {
    const SafetensorsReader file(folder / ("step-3/" + worker_file(i)));
    EXPECT_NE(file.find("model.large"), nullptr);
    for (const TensorInfo& tensor : file.tensors())
      values[tensor.name] += static_cast<std::int64_t>(tensor.bytes() / 4);
    std::array<std::int64_t, 4> steps{};
    file.read(*file.find("steps"), std::as_writable_bytes(std::span(steps)));
    EXPECT_EQ(steps[1], 3);               // large
    EXPECT_EQ(steps[0], i == 0 ? 3 : 0);  // image
  }
  for (const std::string state : {"m.", "v."}) {
    EXPECT_EQ(values[state + "image"], 300);
    EXPECT_EQ(values[state + "large"], 150'001);
    EXPECT_EQ(values[state + "seldom"], 7);
  }
  const auto said = [&](const Options& options) {
    return refusal([&] {
      flock(4, [&](int, World& world) {
        Net net;
        Optimizer optimizer(net, Adam{}, options, world);
        load_checkpoint(optimizer, Checkpoint(folder.path));
      });
    });
  };
  EXPECT_EQ(said(kNodesOfTwo), "accepted");
  Options of_four = kNodesOfTwo;
  of_four.workers_per_node = 4;
  EXPECT_THAT(said(of_four),
              AllOf(HasSubstr("its share of the rule's state is that of worker 0 of 2 in a node"),
                    HasSubstr(", this worker's is that of worker 0 of 4 in a node"),
                    HasSubstr("hierarchy, workers_per_node and block_bytes must be the same")));
  EXPECT_THAT(said({}), HasSubstr(", this worker's is all: "));
}

// There are fewer blocks than workers in a node.
TEST(Checkpoint, AWorkerWithoutAShareGoesOn) {
  const Folder folder;
  std::array<Tensor, 4> ends, resumed;
  const auto run = [](const Tensor& x, Optimizer& optimizer, int i) {
    for (int t = 0; t < 5; ++t) {
      x.mutable_grad() = x.detach() - centre(i, t);
      optimizer.step();
    }
  };
  flock(4, [&](int i, World& world) {
    const Tensor x = parameter({10});
    Optimizer optimizer({x}, AdamW{.lr = 0.1}, kNodesOfTwo, world);
    run(x, optimizer, i);
    EXPECT_TRUE(save_checkpoint(optimizer, folder.path, {.step = 5}));
    run(x, optimizer, i);
    ends[static_cast<std::size_t>(i)] = x.detach();
  });
  EXPECT_EQ(SafetensorsReader(folder / "step-5/worker-1.safetensors").find("m.0.0"), nullptr);
  flock(4, [&](int i, World& world) {
    const Tensor x = parameter({10});
    Optimizer optimizer({x}, AdamW{.lr = 0.1}, kNodesOfTwo, world);
    load_checkpoint(optimizer, Checkpoint(folder.path));
    run(x, optimizer, i);
    resumed[static_cast<std::size_t>(i)] = x.detach();
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
          std::vector<float> values(1000);
          file.read(*file.find(name), std::as_writable_bytes(std::span(values)));
          for (const float value : values) sum += double{value} / (tilde ? 2 : 1);
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
        {
          const c10::AutoGradMode no_gradient(false);
          x.add_((i + step) % 2 == 0 ? 1 : -1);  // so that averagings move something
        }
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

TEST(Checkpoint, GridsOfAnotherWireAreNotTakenAndWrongOnesAreRefused) {
  const Folder folder;
  const World world = World::alone();
  Net net;
  Optimizer narrow(net, SGD{.lr = 0.1}, {.wire = Wire::int8}, world);
  Optimizer wide(net, SGD{.lr = 0.1}, {}, world), narrower(net, SGD{.lr = 0.1}, {.wire = Wire::int4}, world);
  narrow.save(folder / "a");
  wide.save(folder / "b");
  wide.load(folder / "a"), narrower.load(folder / "a"), narrow.load(folder / "b"), narrow.load(folder / "a");
  const SafetensorsReader file(folder / "a");
  auto metadata = file.metadata();
  EXPECT_EQ(metadata.at("grids.int8").substr(0, 4), "-17 ");
  metadata["grids.int8"] = "-17 -31";
  SafetensorsWriter writer(folder / "c", file.tensors(), metadata);
  for (const TensorInfo& tensor : writer.tensors()) {
    std::vector<std::byte> bytes(tensor.bytes());
    file.read(*file.find(tensor.name), bytes);
    writer.write(bytes);
  }
  writer.finish();
  try {
    narrow.load(folder / "c");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("grids.int8 \"-17 -31\" are not numbers from -30 to 20"));
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

TEST(Checkpoint, TheStateOfTorchsOptimizersHasTorchsNames) {
  const Folder folder;
  Net net;
  torch::optim::Adam inner({{{net.large, net.late}}, {{net.seldom}}}, torch::optim::AdamOptions(0.5));
  Optimizer optimizer(net, inner, {}, World::alone());
  train(net, optimizer, 0, 0, 7);
  optimizer.save(folder / "a");
  const SafetensorsReader file(folder / "a");
  EXPECT_EQ(file.metadata().at("rule"), "torch::optim::Adam");
  for (const char* name : {"model.image", "exp_avg.large", "exp_avg_sq.seldom", "options.0", "options.1"})
    EXPECT_NE(file.find(name), nullptr) << name;
  for (const char* name : {"exp_avg.image", "exp_avg.late", "max_exp_avg_sq.large", "m.large"})
    EXPECT_EQ(file.find(name), nullptr) << name;  // not trained, no gradient yet, no amsgrad, not our own
  std::array<std::int64_t, 3> steps{};
  file.read(*file.find("steps"), std::as_writable_bytes(std::span(steps)));
  EXPECT_THAT(steps, testing::ElementsAre(7, 0, 2));
}

TEST(Checkpoint, WithoutAModuleParametersAreNumbered) {
  const Folder folder;
  const World world = World::alone();
  const Tensor a = at::ones({2}).set_requires_grad(true), b = at::ones({3}).set_requires_grad(true);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<Tensor>{a}, rule_options(Adam{.lr = 0.5}));
  groups.emplace_back(std::vector<Tensor>{b});
  Optimizer optimizer(groups, Adam{}, {}, world);
  optimizer.save(folder / "a");
  const SafetensorsReader file(folder / "a");
  for (const char* name :
       {"model.0.0", "model.1.0", "m.0.0", "v.1.0", "options.0", "options.1", "steps", "rng"}) {
    EXPECT_NE(file.find(name), nullptr) << name;
  }
  optimizer.param_groups()[0].options().set_lr(0.1);
  optimizer.load(folder / "a");
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.5);
}

// A group that was added since the last step has no blocks yet.
TEST(Checkpoint, AnAddedGroupIsSavedWithTheStateItWillBeginWith) {
  const Folder folder;
  Optimizer optimizer(std::vector<Tensor>{parameter({2})}, Adam{}, {}, World::alone());
  optimizer.add_param_group({{parameter({9}, 1)}});
  at::globalContext().setDeterministicAlgorithms(true, false);  // then unset memory is NaN
  optimizer.save(folder / "a");
  at::globalContext().setDeterministicAlgorithms(false, false);
  const SafetensorsReader file(folder / "a");
  std::vector<float> m(9, 1);
  file.read(*file.find("m.1.0"), std::as_writable_bytes(std::span(m)));
  EXPECT_THAT(m, testing::Each(0));
}

TEST(Checkpoint, TorchsRandomNumbersGoOn) {
  const Folder folder;
  const World world = World::alone();
  Optimizer optimizer(std::vector<Tensor>{at::ones({2}).set_requires_grad(true)}, SGD{}, {}, world);
  optimizer.save(folder / "a");
  const Tensor next = at::randn({9});
  optimizer.load(folder / "a");
  EXPECT_TRUE(at::equal(at::randn({9}), next));
}

TEST(Checkpoint, AWorkerThatIsGoneLeavesAGapThatIsNamed) {
  const Folder folder;
  flock(3, [&](int i, World& world) {
    Net net;
    auto optimizer = std::make_unique<Optimizer>(net, SGD{}, Options{.topology = "complete"}, world);
    if (i == 0) return;  // the lowest worker that is there writes the manifest
    train(net, *optimizer, i, 0, 2);
    EXPECT_TRUE(save_checkpoint(*optimizer, folder.path, {.step = 2}));
  });
  const Checkpoint checkpoint(folder.path);
  EXPECT_EQ(checkpoint.manifest().files.size(), 2U);
  EXPECT_EQ(checkpoint.manifest().workers, 3);
  const std::string said = refusal([&] {
    flock(3, [&](int, World& world) {
      Net net;
      Optimizer optimizer(net, SGD{}, {.topology = "complete"}, world);
      load_checkpoint(optimizer, checkpoint);
    });
  });
  EXPECT_THAT(said, HasSubstr("has no file of worker 0"));
  EXPECT_THAT(refusal([&] { check_workers(checkpoint, 2); }),
              HasSubstr("is of 3 workers, this run has 2: the number must be the same"));
}

// It leaves the first average of the checkpoint, and is asked for none of the others.
TEST(Checkpoint, AWorkerThatMissesOneTakesPartInTheNext) {
  const Folder folder;
  std::atomic<int> done = 0;  // with step 1
  flock(kWorkers, [&](int i, World& world) {
    bool away = false;
    world.interrupted = [&] { return away; };
    Net net;
    Optimizer optimizer(net, SGD{}, {.topology = "complete"}, world);
    if (i == 1) {
      away = true;
      EXPECT_FALSE(save_checkpoint(optimizer, folder.path, {.step = 1}));
      away = false;
    } else {
      EXPECT_TRUE(eventually([&] { return done > 0; }));
      EXPECT_TRUE(save_checkpoint(optimizer, folder.path, {.step = 1}));
    }
    ++done;
    EXPECT_TRUE(eventually([&] { return done == kWorkers; }));
    EXPECT_TRUE(save_checkpoint(optimizer, folder.path, {.step = 2}));
  });
  EXPECT_EQ(Checkpoint(folder / "step-1").manifest().files.size(), 2U);
  EXPECT_EQ(Checkpoint(folder / "step-2").manifest().files.size(), 3U);
}

TEST(Checkpoint, AFailedWriteCostsOneWarningAndNothingElse) {
  const Folder folder;
  std::mutex mutex;
  std::vector<std::string> warnings;
  flock(3, [&](int i, World& world) {
    world.log = [&](Level level, const std::string& message) {
      const std::lock_guard lock(mutex);
      if (level == Level::warning) warnings.push_back(message);
    };
    Net net;
    Optimizer optimizer(net, SGD{}, {}, world);
    EXPECT_TRUE(save_checkpoint(optimizer, folder.path, {.step = 1}));
    // Workers 1 and 2 cannot write: a folder has the name of their file.
    if (i != 0) std::filesystem::create_directories(draft_checkpoint(folder.path, 2) + "/" + worker_file(i));
    EXPECT_FALSE(save_checkpoint(optimizer, folder.path, {.step = 2}));
    train(net, optimizer, i, 0, 2);
    EXPECT_EQ(Checkpoint(folder.path).manifest().step, 1);
    EXPECT_TRUE(save_checkpoint(optimizer, folder.path, {.step = 3}));
  });
  Checkpoint(folder.path).verify_all();
  EXPECT_EQ(Checkpoint(folder.path).manifest().step, 3);
  EXPECT_FALSE(std::filesystem::exists(folder / "step-2.tmp"));
  EXPECT_THAT(warnings,
              testing::ElementsAre(AllOf(HasSubstr("no checkpoint of step 2, the ones before it are kept"),
                                         HasSubstr("worker-1.safetensors: cannot be opened"))));
}

// --- what is refused ---

TEST(Checkpoint, OneDamagedFileIsRefusedByAllAndChangesNothing) {
  const Folder folder;
  const Options options{.topology = "complete"};
  flock(2, [&](int i, World& world) {
    Net net;
    Optimizer optimizer(net, AdamW{}, options, world);
    train(net, optimizer, i, 0, 3);
    save_checkpoint(optimizer, folder.path, {.step = 3});
  });
  const std::string file = folder / "step-3/worker-1.safetensors";
  std::string text = slurp(file);
  text[text.size() / 2] ^= 4;
  spill(file, text);
  std::string said[2];
  flock(2, [&](int i, World& world) {
    Net net;
    Optimizer optimizer(net, AdamW{}, options, world);
    said[i] = refusal([&] { load_checkpoint(optimizer, Checkpoint(folder.path)); });
    EXPECT_TRUE(at::equal(net.large.detach(), Net().large.detach()));
    train(net, optimizer, i, 0, 2);  // the optimizer still works
    expect_undisturbed(optimizer);
  });
  EXPECT_EQ(said[0], "worker 1 could not read its part of the checkpoint");
  EXPECT_THAT(said[1], HasSubstr(file + ": offset 0: damaged"));
}

TEST(Checkpoint, FilesOfAnotherOptimizerAreRefused) {
  const Folder folder;
  const World world = World::alone();
  const std::string path = folder / "a";
  const auto make = [&](std::vector<std::int64_t> sizes, Rule rule) {
    std::vector<Tensor> parameters;
    for (const std::int64_t size : sizes) parameters.push_back(at::ones({size}).set_requires_grad(true));
    return std::make_unique<Optimizer>(parameters, rule, Options{}, world);
  };
  make({2, 3}, Adam{})->save(path);
  const auto said = [&](std::vector<std::int64_t> sizes, Rule rule) {
    return refusal([&] { make(sizes, rule)->load(path); });
  };
  EXPECT_EQ(said({2, 3}, Adam{}), "accepted");
  EXPECT_EQ(said({2, 3}, AdamW{}), path + ": offset 8: its rule is Adam, this optimizer's is AdamW");
  EXPECT_THAT(said({2, 4}, Adam{}),
              HasSubstr("tensor \"model.0.1\" is F32 [3], this optimizer's is F32 [4]"));
  EXPECT_EQ(said({2, 3, 4}, Adam{}), path + ": offset 8: there is no tensor \"model.0.2\"");
  EXPECT_THAT(said({2}, Adam{}), HasSubstr("tensor \"steps\" is I64 [2], this optimizer's is I64 [1]"));
  // SGD keeps a state only with momentum.
  make({2}, SGD{.momentum = 0.5})->save(path);
  EXPECT_THAT(said({2}, SGD{}), HasSubstr("tensor \"m.0.0\" is not one of this optimizer"));
  make({2}, SGD{})->save(path);
  EXPECT_THAT(said({2}, SGD{.momentum = 0.5}), HasSubstr("there is no tensor \"m.0.0\""));
  write_small(path, 1);
  EXPECT_EQ(said({2}, SGD{}), path + ": offset 8: its format is \"test\", not \"starling optimizer 1\"");
}

TEST(Checkpoint, FilesOfAnotherOptimizerOfTorchsAreRefused) {
  using namespace torch::optim;
  const Folder folder;
  const World world = World::alone();
  const std::string path = folder / "a";
  const auto with = [&](const Inner& make, const std::function<void(Optimizer&)>& f) {
    const Tensor a = at::ones({2}).set_requires_grad(true), b = at::ones({3}).set_requires_grad(true);
    const auto inner = make({a, b});
    Optimizer optimizer(*inner, {}, world);
    a.mutable_grad() = at::ones({2});
    optimizer.step();
    f(optimizer);
  };
  const auto save = [&](const Inner& make) { with(make, [&](Optimizer& o) { o.save(path); }); };
  const auto said = [&](const Inner& make) {
    return refusal([&] { with(make, [&](Optimizer& o) { o.load(path); }); });
  };
  const Inner adam = made<torch::optim::Adam>(AdamOptions(0.5));
  const Inner rms = made<torch::optim::RMSprop>(RMSpropOptions(0.5));
  save(adam);
  EXPECT_EQ(said(adam), "accepted");
  EXPECT_EQ(said(made<torch::optim::AdamW>(AdamWOptions(0.5))),
            path + ": offset 8: its rule is torch::optim::Adam, this optimizer's is torch::optim::AdamW");
  Optimizer own(std::vector<Tensor>{at::ones({2})}, Adam{}, {}, world);
  EXPECT_EQ(refusal([&] { own.load(path); }),
            path + ": offset 8: its rule is torch::optim::Adam, this optimizer's is Adam");

  // Changes one thing in a file: a name to one of the same length, or a number.
  const auto renamed = [&](const Inner& make, const std::string& from, const std::string& to) {
    save(make);
    std::string text = slurp(path);
    text.replace(text.find("\"" + from + "\""), from.size() + 2, "\"" + to + "\"");
    spill(path, text);
    return said(make);
  };
  const auto option = [&](const Inner& make, std::size_t index, double value) {
    save(make);
    const std::size_t begin = [&] {
      const SafetensorsReader file(path);
      return file.offset(*file.find("options.0"));
    }();
    std::string text = slurp(path);
    std::memcpy(text.data() + begin + index * sizeof value, &value, sizeof value);
    spill(path, text);
    return said(make);
  };
  EXPECT_THAT(renamed(adam, "exp_avg_sq.0.0", "exp_avg_zz.0.0"),
              HasSubstr("tensor \"exp_avg_zz.0.0\" is not one of this optimizer"));
  EXPECT_THAT(renamed(adam, "exp_avg.0.0", "exp_avg.0.1"),
              HasSubstr("tensor \"exp_avg.0.1\" is F32 [2], this optimizer's is F32 [3]"));
  EXPECT_THAT(renamed(made<torch::optim::SGD>(SGDOptions(0.5).momentum(0.5)), "momentum_buffer.0.0",
                      "momentum_buffer.0.9"),
              HasSubstr("tensor \"momentum_buffer.0.9\" is not one of this optimizer"));
  const Inner adagrad = made<torch::optim::Adagrad>(AdagradOptions(0.5));
  save([&](std::vector<Tensor> parameters) {
    auto inner = adagrad(parameters);
    inner->state().erase(parameters[1].unsafeGetTensorImpl());
    return inner;
  });
  EXPECT_EQ(said(adagrad), path + ": offset 8: there is no tensor \"sum.0.1\"");
  EXPECT_THAT(option(rms, 4, 0.5), HasSubstr("there is no tensor \"momentum_buffer.0.0\""));
  EXPECT_THAT(option(rms, 5, 1), HasSubstr("there is no tensor \"grad_avg.0.0\""));
  EXPECT_THAT(option(adam, 5, 1), HasSubstr("there is no tensor \"max_exp_avg_sq.0.0\""));
  EXPECT_THAT(option(adam, 0, -1),
              HasSubstr("tensor \"options.0\": torch::optim::Adam: Invalid learning rate: -1"));
  EXPECT_THAT(option(adam, 5, 2),
              HasSubstr("torch::optim::Adam: option 6 = 2 is not allowed: it must be 0 or 1"));
  EXPECT_THAT(option(adam, 3, std::nan("")), HasSubstr("option 4 = nan is not allowed: it must be finite"));
}

TEST(Checkpoint, AnOptimizerWhoseStateIsNotKnownIsRefused) {
  struct Mine final : torch::optim::SGD {
    using SGD::SGD;
  };
  const Folder folder;
  const std::string expected =
      "the optimizer that is stepped around is none of torch::optim's SGD, Adam, AdamW, Adagrad and RMSprop: "
      "what else it keeps is not known, so it cannot be saved or loaded";
  const std::vector<Tensor> parameters{at::ones({2}).set_requires_grad(true)};
  Mine mine(parameters, torch::optim::SGDOptions(0.1));
  torch::optim::LBFGS lbfgs(parameters);
  for (torch::optim::Optimizer* inner : std::initializer_list<torch::optim::Optimizer*>{&mine, &lbfgs}) {
    Optimizer optimizer(*inner, {}, World::alone());
    EXPECT_EQ(refusal([&] { optimizer.save(folder / "a"); }), expected);
    EXPECT_EQ(refusal([&] { optimizer.load(folder / "a"); }), expected);
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "a"));
}

TEST(Checkpoint, ABufferOfATypeThatTheFormatLacksIsRefused) {
  struct Odd : torch::nn::Module {
    Odd() {
      register_parameter("weight", at::ones({2}));
      register_buffer("spectrum", at::zeros({2}, at::kComplexFloat));
    }
  } odd;
  const Folder folder;
  const Optimizer optimizer(odd, SGD{}, {}, World::alone());
  EXPECT_EQ(refusal([&] { optimizer.save(folder / "a"); }),
            "tensor \"model.spectrum\" is ComplexFloat: that cannot be saved");
}

TEST(Checkpoint, SparseStateIsRefused) {
  const Folder folder;
  const Tensor table = at::ones({4, 2}).set_requires_grad(true);
  torch::optim::SGD inner({table}, torch::optim::SGDOptions(0.1).momentum(0.5));
  Optimizer optimizer(inner, {}, World::alone());
  table.mutable_grad() = at::ones({4, 2}).to_sparse(1);
  optimizer.step();
  EXPECT_EQ(
      refusal([&] { optimizer.save(folder / "a"); }),
      "momentum_buffer of parameter 0.0 in torch::optim::SGD is not dense float32: that cannot be saved");
}

// An attacker can write a file with the right checksum.
TEST(Checkpoint, ImpossibleValuesAreRefused) {
  const Folder folder;
  const World world = World::alone();
  const std::string path = folder / "a";
  Optimizer optimizer(std::vector<Tensor>{at::ones({2}).set_requires_grad(true)}, AccumAdam{}, {}, world);
  optimizer.save(path);
  const std::string whole = slurp(path);
  const auto said = [&](const std::string& tensor, std::size_t index, auto value) {
    spill(path, whole);
    const SafetensorsReader file(path);
    std::string text = whole;
    std::memcpy(text.data() + file.offset(*file.find(tensor)) + index * sizeof value, &value, sizeof value);
    spill(path, text);
    return refusal([&] { optimizer.load(path); });
  };
  EXPECT_THAT(said("options.0", 0, -1.0),
              HasSubstr("tensor \"options.0\": AccumAdam: lr = -1 is not allowed"));
  EXPECT_THAT(said("options.0", 0, std::nan("")), HasSubstr("lr = nan is not allowed"));
  EXPECT_THAT(said("options.0", 5, 1e300),
              HasSubstr("option 6 = 1e+300 is not allowed: it must be a whole number"));
  EXPECT_THAT(said("options.0", 5, std::nan("")), HasSubstr("it must be a whole number"));
  EXPECT_THAT(said("steps", 0, std::int64_t{-1}), HasSubstr("tensor \"steps\": a count is negative"));
  EXPECT_THAT(said("rng", 0, std::uint64_t{1}), HasSubstr("accepted"));  // the seed may be anything
  for (std::size_t word = 0; word < 600; ++word) said("rng", word, ~std::uint64_t{0});  // no crash
  std::string text = whole;
  text.replace(text.find("\"position\":\"0\""), 14, "\"position\":\"x\"");
  spill(path, text);
  EXPECT_THAT(refusal([&] { optimizer.load(path); }), HasSubstr("position \"x\" is not a number from 0"));
}

TEST(Checkpoint, TorchsArchivesAreRefused) {
  const World world = World::alone();
  Optimizer optimizer(std::vector<Tensor>{at::ones({2}).set_requires_grad(true)}, SGD{}, {}, world);
  torch::serialize::OutputArchive out;
  EXPECT_THAT(refusal([&] { optimizer.save(out); }), HasSubstr("use save(file)"));
  torch::serialize::InputArchive in;
  EXPECT_THAT(refusal([&] { optimizer.load(in); }), HasSubstr("use load(file)"));
}

}  // namespace
}  // namespace starling
