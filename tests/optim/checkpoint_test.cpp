// The contents of a worker's file, and checkpoints of which a part is missing. Workers are threads.
#include <ATen/Context.h>
#include <fmt/format.h>

#include "starling/checkpoint/consensus.h"
#include "starling/optim/checkpoint_writer.h"
#include "starling/optim/state_file.h"
#include "tests/eventually.h"
#include "tests/optim/checkpointed.h"

namespace starling {
namespace {

using testing::HasSubstr;

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

TEST(Checkpoint, ATensorThatLiesInMemoryAsItsNegativeIsSavedAsItsValues) {
  const Folder folder;
  save_tensors(folder / "a", {{"x", at::_neg_view(at::ones({3}))}}, {});
  const SafetensorsReader file(folder / "a");
  EXPECT_TRUE(is_all(read_tensor(file, *file.find("x")), -1));
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
    const auto steps = values_in<std::int64_t>(file, "steps");
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

TEST(Checkpoint, AWorkerThatIsNotFiniteIsNotInItsAverageModel) {
  const Folder folder;
  flock(3, [&](int i, World& world) {
    Net net;
    Optimizer optimizer(net, SGD{.lr = 0.1}, {}, world);
    train(net, optimizer, i, 0, 2);
    const c10::AutoGradMode no_gradient(false);
    net.late.fill_(i == 2 ? NAN : 1.0 + i);
    net.mean.fill_(i == 2 ? NAN : 1.0 + i);
    EXPECT_TRUE(save_checkpoint(optimizer, folder.path, {.step = 2}));
  });
  LogLines said;
  write_consensus(AverageModel(Checkpoint(folder.path), said.log()), folder / "mean");
  const SafetensorsReader file(folder / "mean");
  EXPECT_EQ(values_in<float>(file, "late"), std::vector<float>(4, 1.5F));
  EXPECT_EQ(values_in<float>(file, "mean"), std::vector<float>(3, 1.5F));
  EXPECT_TRUE(std::ranges::all_of(values_in<float>(file, "large"), [](float x) { return std::isfinite(x); }));
  EXPECT_THAT(said.all(), testing::ElementsAre(HasSubstr("worker-2.safetensors: left out")));
}

TEST(Checkpoint, AWorkerWhoseValuesHaveJumpedHasNoFile) {
  const Folder folder;
  LogLines said;
  flock(4, [&](int i, World& world) {
    if (i == 2) world.log = said.log();
    Net net;
    Options guarded{.topology = "ring"};
    guarded.jump_guard = 1000;
    Optimizer optimizer(net, SGD{.lr = 0.1}, guarded, world);
    train(net, optimizer, i, 0, 40);
    if (i == 2) net.large.detach().fill_(1e6);
    train(net, optimizer, i, 40, 41);
    EXPECT_TRUE(save_checkpoint(optimizer, folder.path, {.step = 41}));
    nobody_leaves_yet(optimizer);
  });
  const Checkpoint checkpoint(folder.path);
  std::vector<int> workers;
  for (const WorkerFile& file : checkpoint.manifest().files) workers.push_back(file.worker);
  EXPECT_THAT(workers, testing::ElementsAre(0, 1, 3));
  EXPECT_EQ(checkpoint.manifest().workers, 4);
  EXPECT_THAT(said.text(), HasSubstr("the checkpoint of step 41 has no file of this worker, whose parameters "
                                     "are far from most neighbours'"));
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
  EXPECT_THAT(values_in<std::int64_t>(file, "steps"), testing::ElementsAre(7, 0, 2));
}

TEST(Checkpoint, WithoutAModuleParametersAreNumbered) {
  const Folder folder;
  const Tensor a = parameter({2}, 1), b = parameter({3}, 1);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<Tensor>{a}, rule_options(Adam{.lr = 0.5}));
  groups.emplace_back(std::vector<Tensor>{b});
  Optimizer optimizer(groups, Adam{}, {}, World::alone());
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
  Optimizer optimizer({parameter({2})}, Adam{}, {}, World::alone());
  optimizer.add_param_group({{parameter({9}, 1)}});
  at::globalContext().setDeterministicAlgorithms(true, false);  // then unset memory is NaN
  optimizer.save(folder / "a");
  at::globalContext().setDeterministicAlgorithms(false, false);
  EXPECT_THAT(values_in<float>(SafetensorsReader(folder / "a"), "m.1.0"),
              testing::AllOf(testing::SizeIs(9), testing::Each(0)));
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
  LogLines warnings;
  flock(3, [&](int i, World& world) {
    world.log = warnings.log();
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
  EXPECT_THAT(warnings.all(), testing::ElementsAre(AllOf(
                                  HasSubstr("no checkpoint of step 2, the ones before it are kept"),
                                  testing::ContainsRegex("worker-[12].safetensors: cannot be opened"))));
}

TEST(Checkpoint, AStateThatCannotBeSavedCostsOneWarningAndNothingElse) {
  const Folder folder;
  LogLines warnings;
  flock(2, [&](int, World& world) {
    world.log = warnings.log();
    const Tensor table = parameter({4, 2}, 1);
    torch::optim::SGD inner({table}, torch::optim::SGDOptions(0.1).momentum(0.5));
    Optimizer optimizer(inner, {}, world);
    EXPECT_TRUE(save_checkpoint(optimizer, folder.path, {.step = 0}));
    table.mutable_grad() = at::ones({4, 2}).to_sparse(1);
    optimizer.step();
    EXPECT_FALSE(save_checkpoint(optimizer, folder.path, {.step = 1}));
    expect_undisturbed(optimizer);
  });
  EXPECT_THAT(warnings.all(), testing::ElementsAre(HasSubstr("is not dense float32: that cannot be saved")));
  EXPECT_EQ(slurp(folder / "latest"), "step-0\n");
  EXPECT_FALSE(std::filesystem::exists(folder / "step-1.tmp"));
}

// An attempt to write the same checkpoint was killed, and has left notes.
TEST(Checkpoint, ANoteOfAnEarlierAttemptIsNotTaken) {
  const Folder folder;
  LogLines warnings;
  const std::string draft = draft_checkpoint(folder.path, 2);
  Manifest note{.step = 2, .workers = 2, .recipe = {{"attempt", "1"}}};
  note.files = {{.worker = 1, .digest = {100, 7}, .step = 2}};
  spill(draft + "/worker-1.json", to_json(note));
  spill(draft + "/worker-0.json", "no note at all");
  std::filesystem::create_directories(draft + "/" + worker_file(1));  // which cannot be written
  const auto save = [&](bool saved) {
    flock(2, [&](int i, World& world) {
      world.log = warnings.log();
      Net net;
      Optimizer optimizer(net, SGD{}, {}, world);
      train(net, optimizer, i, 0, 2);
      EXPECT_EQ(save_checkpoint(optimizer, folder.path, {.step = 2}), saved);
    });
  };
  save(false);
  EXPECT_THAT(warnings.all(), testing::ElementsAre(HasSubstr("worker-1.safetensors: cannot be opened")));
  std::filesystem::create_directories(draft);
  spill(draft + "/worker-1.json", to_json(note));
  save(true);
  Checkpoint(folder.path).verify_all();
}

// The file of worker 1 never comes to the folder, and another process has taken its rank when the
// next checkpoint is due.
TEST(Checkpoint, AFileOfAWorkerThatWasStartedAgainIsNotWaitedFor) {
  const Folder folder;
  LogLines warnings;
  flock(2, [&](int i, World& world) {
    world.log = warnings.log();
    Net net;
    Optimizer optimizer(net, SGD{}, {}, world);
    const std::string all = folder / "all";
    auto writer = std::make_unique<CheckpointWriter>(optimizer, i == 0 ? all : folder / "elsewhere");
    EXPECT_TRUE(writer->save({.step = 1}));
    if (i == 1) writer = std::make_unique<CheckpointWriter>(optimizer, all);
    EXPECT_TRUE(writer->save({.step = 2}));
    EXPECT_TRUE(writer->finish());
  });
  EXPECT_EQ(Checkpoint(folder / "all/step-1").manifest().files.size(), 1U);
  EXPECT_EQ(Checkpoint(folder / "all/step-2").manifest().files.size(), 2U);
  EXPECT_THAT(warnings.text(), testing::Not(HasSubstr("no checkpoint of step")));
}

// Later steps do not change it, and the one before is committed first.
TEST(Checkpoint, AWriterSavesTheStateOfTheMomentAndCommitsInOrder) {
  const Folder folder;
  const Setting s{AccumAdam{.lr = 0.01, .window = 4}, {.topology = "base-2"}, 3};
  flock(s.workers, [&](int i, World& world) {
    struct Run run(s, world), again(s, world);
    {
      CheckpointWriter writer(*run.optimizer, folder / "background", 3);
      for (int t = 0; t < 12; ++t) {
        EXPECT_TRUE(writer.save({.step = t}));
        train(run.net, *run.optimizer, i, t, t + 1);
      }
      EXPECT_TRUE(writer.finish());
      EXPECT_TRUE(writer.save({.step = 12, .seconds = 1.0 + i}, 20 + i));
    }  // without finish(), which the other workers may be too late for
    for (int t = 0; t < 12; ++t) {
      EXPECT_TRUE(save_checkpoint(*again.optimizer, folder / "at-once", {.step = t}, 3));
      train(again.net, *again.optimizer, i, t, t + 1);
    }
    nobody_leaves_yet(*run.optimizer);
  });
  EXPECT_GE(Checkpoint(folder / "background").manifest().step, 11);
  for (int t = 10; t < 12; ++t) {
    const Checkpoint background(folder / fmt::format("background/step-{}", t));
    const Checkpoint at_once(folder / fmt::format("at-once/step-{}", t));
    for (int i = 0; i < s.workers; ++i) {
      const SafetensorsReader a(background.verified(i)), b(at_once.verified(i));
      for (const TensorInfo& tensor : a.tensors()) {
        if (tensor.name == "rng") continue;  // which the threads of this test share
        EXPECT_TRUE(at::equal(read_tensor(a, tensor), read_tensor(b, *b.find(tensor.name)))) << tensor.name;
      }
    }
  }
  const auto last = Checkpoint(folder / "background").manifest();
  if (last.step == 12) {
    EXPECT_EQ(last.seconds, 3);
    EXPECT_EQ(last.files[1].step, 21);
  }
}

}  // namespace
}  // namespace starling
