// Checkpoints that are loaded by more or fewer workers than they are of. Workers are threads.
#include "starling/optim/options.h"
#include "starling/optim/state_file.h"
#include "tests/optim/checkpointed.h"
#include "tests/optim/every_scheme.h"

namespace starling {
namespace {

using testing::HasSubstr;
using Tensors = std::map<std::string, Tensor>;

// A checkpoint of step 7. `lost`: a worker that has left before.
void save_run(const Setting& s, const Folder& folder, int steps = 7, int lost = -1) {
  flock(s.workers, [&](int i, World& world) {
    Run run(s, world);
    if (i == lost) return;
    train(run.net, *run.optimizer, i, 0, steps);
    EXPECT_TRUE(save_checkpoint(*run.optimizer, folder.path, {.step = 7}));
  });
}

// The states of so many workers after they have loaded the checkpoint, which then go on.
std::vector<OptimizerState> load_run(Setting s, const Folder& folder, int workers, OtherWorkers how) {
  s.workers = workers;
  return results_of(workers, [&](int i, World& world) {
    Run run(s, world);
    load_checkpoint(*run.optimizer, Checkpoint(folder.path), how);
    OptimizerState state = run.optimizer->state();
    for (auto& [name, tensor] : state.tensors) tensor = tensor.clone();
    train(run.net, *run.optimizer, i, 7, 10);
    expect_undisturbed(*run.optimizer);
    EXPECT_TRUE(at::isfinite(run.net.large).all().item<bool>());
    return state;
  });
}

// The tensors of the model, the rule and the caller in a worker's file.
Tensors in_file(const Folder& folder, int worker) {
  const SafetensorsReader file(folder / ("step-7/" + worker_file(worker)));
  Tensors all;
  for (const TensorInfo& info : file.tensors()) {
    const std::string kind = info.name.substr(0, info.name.find('.'));
    if (std::ranges::count(std::array{"model", "master", "m", "v", "b", "exp_avg", "exp_avg_sq", "options",
                                      "steps", "loss_scale"},
                           kind) > 0)
      all.emplace(info.name, read_tensor(file, info));
  }
  return all;
}

void check_copies(const Setting& s) {
  const Folder folder;
  save_run(s, folder);
  for (const int workers : {2, 5}) {
    const auto states = load_run(s, folder, workers, OtherWorkers::copy);
    for (int i = 0; i < workers; ++i) {
      const OptimizerState& state = states[static_cast<std::size_t>(i)];
      EXPECT_EQ(state.metadata.at("position"), "0");
      for (const auto& [name, tensor] : in_file(folder, i % s.workers))
        EXPECT_TRUE(at::equal(state.tensors.at(name), tensor)) << name << ' ' << i;
    }
  }
}

TEST(OtherWorkers, WorkerRTakesFileRModN) {
  check_copies({AccumAdamW{.lr = 0.01, .window = 4}, {.topology = "base-2"}, 3});
  check_copies({AdamW{.lr = 0.01}, {.topology = "ring", .wire = Wire::int8}, 3});
  check_copies({.rule = SGD{.lr = 0.01, .momentum = 0.9},
                .options = {.loss_scaling = LossScaling{.initial = 4}},
                .workers = 3,
                .narrow = true});
  check_copies({{}, {}, 3, made<torch::optim::Adam>(torch::optim::AdamOptions(0.01))});
}

// As the state of each scheme is described: its initial values, next to the loaded parameters.
TEST(OtherWorkers, AnySchemeBeginsAnew) {
  for (const SchemeInfo* const info : schemes()) {
    const Setting s{.rule = AdamW{.lr = 0.01}, .options = options_of(*info), .workers = 4};
    const Folder folder;
    save_run(s, folder);
    for (const auto& [workers, how] :
         {std::pair(3, OtherWorkers::copy), std::pair(6, OtherWorkers::average)}) {
      try {
        check_options(s.options, workers, workers, false);
      } catch (const UsageError&) {
        continue;  // of the weights of this graph
      }
      std::vector<OptimizerState> states;
      const std::string said = refusal([&] { states = load_run(s, folder, workers, how); });
      if (said != "accepted") {
        EXPECT_EQ(how, OtherWorkers::average);
        EXPECT_THAT(said, HasSubstr("with push-sum a part of it has weight"));
      }
      for (const OptimizerState& state : states) {
        for (const SchemeState& of : state.of_scheme) {
          if (of.numbers) {
            const Tensor& now = state.tensors.at(of.name);
            const auto* const first = now.const_data_ptr<double>();
            EXPECT_EQ(std::vector<double>(first, first + now.numel()), *of.numbers) << info->name << of.name;
            continue;
          }
          if (of.name.find('.') != std::string::npos) continue;  // copies of a neighbour
          const Tensor& x = state.tensors.at("model.large");
          EXPECT_TRUE(at::equal(state.tensors.at(of.name + ".large"),
                                of.fresh == Fresh::zero ? at::zeros_like(x) : x))
              << info->name << ' ' << of.name;
        }
      }
    }
  }
}

void check_average(const Setting& s, int workers) {
  const Folder folder;
  save_run(s, folder);
  std::vector<Tensors> files;
  for (int i = 0; i < s.workers; ++i) files.push_back(in_file(folder, i));
  for (const OptimizerState& state : load_run(s, folder, workers, OtherWorkers::average)) {
    for (const auto& [name, first] : files.front()) {
      const Tensor& mine = state.tensors.at(name);
      ASSERT_EQ(mine.scalar_type(), first.scalar_type()) << name;
      if (name.starts_with("options.") || name == "loss_scale") {
        EXPECT_TRUE(at::equal(mine, first)) << name;
        continue;
      }
      Tensor sum = at::zeros(first.sizes(), at::kDouble), most = first;
      for (const Tensors& file : files) {
        // A narrow parameter is its rounded master.
        const auto master = file.find("master." + name.substr(std::min(name.size(), std::size_t{6})));
        sum += name.starts_with("model.") && master != file.end() ? master->second : file.at(name);
        most = at::maximum(most, file.at(name));
      }
      const Tensor mean = (sum / static_cast<double>(files.size())).to(at::kFloat);
      EXPECT_TRUE(at::equal(mine, first.is_floating_point() ? mean.to(first.scalar_type()) : most)) << name;
    }
  }
}

TEST(OtherWorkers, EachTakesTheAverageOfParametersAndMoments) {
  check_average({AccumAdamW{.lr = 0.01, .window = 4}, {.topology = "base-2"}, 4}, 3);
  check_average({AccumAdamW{.lr = 0.01, .window = 4}, {.topology = "base-2"}, 3}, 5);
  check_average({.rule = SGD{.lr = 0.01, .momentum = 0.9},
                 .options = {.topology = "ring", .loss_scaling = LossScaling{.initial = 4}},
                 .workers = 3,
                 .narrow = true},
                2);
  check_average({{}, {}, 3, made<torch::optim::Adam>(torch::optim::AdamOptions(0.01))}, 2);
}

// A worker around one of torch's optimizers may have no state of a parameter yet.
TEST(OtherWorkers, AStateThatOneWorkerLacksCountsAsZeros) {
  const Setting s{{}, {}, 3, made<torch::optim::Adam>(torch::optim::AdamOptions(0.01))};
  const Folder folder;
  save_run(s, folder, 1);  // worker 2 alone has had a gradient of `seldom`
  ASSERT_FALSE(in_file(folder, 0).contains("exp_avg.seldom"));
  const Tensor only = in_file(folder, 2).at("exp_avg.seldom");
  for (const OptimizerState& state : load_run(s, folder, 2, OtherWorkers::average)) {
    EXPECT_TRUE(at::equal(state.tensors.at("exp_avg.seldom"), (only.to(at::kDouble) / 3).to(at::kFloat)));
    EXPECT_EQ(state.tensors.at("steps")[2].item<std::int64_t>(), 1);
  }
}

// Each worker of a node keeps its share of the state, and finds it in the files of its own place.
TEST(OtherWorkers, AHierarchyMayHaveMoreOrFewerNodes) {
  for (const int workers : {2, 6}) {
    check_average({AdamW{.lr = 0.01}, {.topology = "ring"}, 4}, workers);
    const Setting s{AdamW{.lr = 0.01}, kNodesOfTwo, 4};
    const Folder folder;
    save_run(s, folder);
    for (const OtherWorkers how : {OtherWorkers::copy, OtherWorkers::average}) {
      const auto states = load_run(s, folder, workers, how);
      for (int i = 0; i < workers; ++i) {
        const Tensors mine = in_file(folder, i % 4), other = in_file(folder, (i + 2) % 4);
        for (const auto& [name, tensor] : mine) {
          if (!name.starts_with("m.")) continue;
          const Tensor wanted = how == OtherWorkers::copy
                                    ? tensor
                                    : ((tensor.to(at::kDouble) + other.at(name)) / 2).to(at::kFloat);
          EXPECT_TRUE(at::equal(states[static_cast<std::size_t>(i)].tensors.at(name), wanted)) << name;
        }
      }
    }
    Setting flat = s;
    flat.options.workers_per_node = 1;
    EXPECT_THAT(refusal([&] { load_run(flat, folder, workers, OtherWorkers::average); }),
                HasSubstr("/step-7: state: its share of the rule's state is "));
  }
}

TEST(OtherWorkers, FilesOfLostWorkersArePassedOver) {
  const Folder folder;
  const Setting s{SGD{.lr = 0.1}, {.topology = "complete"}, 3};
  save_run(s, folder, 2, /*lost=*/1);
  for (const int workers : {2, 3}) {
    const auto states = load_run(s, folder, workers, OtherWorkers::copy);
    for (int i = 0; i < workers; ++i)
      EXPECT_TRUE(at::equal(states[static_cast<std::size_t>(i)].tensors.at("model.large"),
                            in_file(folder, i % 2 == 0 ? 0 : 2).at("model.large")));
  }
  EXPECT_THAT(refusal([&] { load_run(s, folder, 3, OtherWorkers::refuse); }), HasSubstr("worker 1"));
}

// Worker 1 has a model, or a moment, that is not finite. A mask is infinite at all workers.
TEST(OtherWorkers, WhatIsNotFiniteGoesToNobody) {
  for (const bool moment : {false, true}) {
    SCOPED_TRACE(moment);
    const Folder folder;
    const Setting s{SGD{.lr = 0.1, .momentum = 0.9}, {.topology = "complete"}, 3};
    flock(s.workers, [&](int i, World& world) {
      struct Run run(s, world);
      train(run.net, *run.optimizer, i, 0, 2);
      OptimizerState state = copy_of(run.optimizer->state());
      state.tensors.at("model.mean").fill_(-INFINITY);
      if (i == 1) state.tensors.at(moment ? "m.large" : "model.large").fill_(NAN);
      run.optimizer->set_state(state);
      EXPECT_TRUE(save_checkpoint(*run.optimizer, folder.path, {.step = 7}));
    });
    for (const OtherWorkers how : {OtherWorkers::copy, OtherWorkers::average}) {
      const auto states = results_of(2, [&](int, World& world) {
        struct Run run(s, world);
        load_checkpoint(*run.optimizer, Checkpoint(folder.path), how);
        nobody_leaves_yet(*run.optimizer);
        return copy_of(run.optimizer->state());
      });
      for (int i = 0; i < 2; ++i) {
        SCOPED_TRACE(i);
        const Tensors& now = states[static_cast<std::size_t>(i)].tensors;
        const bool copies_it = moment && how == OtherWorkers::copy && i == 1;  // its own state
        EXPECT_EQ(at::isfinite(now.at("m.large")).all().item<bool>(), !copies_it);
        EXPECT_TRUE(at::isfinite(now.at("model.large")).all().item<bool>());
        EXPECT_TRUE(at::equal(now.at("model.mean"), at::full({3}, -INFINITY)));
        if (how == OtherWorkers::copy && !moment) {
          EXPECT_TRUE(at::equal(now.at("model.large"), in_file(folder, i == 0 ? 0 : 2).at("model.large")));
        }
        if (how == OtherWorkers::average && moment) {
          const Tensor mean = (in_file(folder, 0).at("m.large").to(at::kDouble) +
                               in_file(folder, 2).at("m.large").to(at::kDouble)) /
                              2;
          EXPECT_TRUE(at::equal(now.at("m.large"), mean.to(at::kFloat)));
        }
      }
    }
  }
}

TEST(OtherWorkers, AreRefusedUnlessTheCallerChooses) {
  const Folder folder;
  const Setting s{SGD{.lr = 0.1}, {.topology = "complete"}, 3};
  save_run(s, folder);
  EXPECT_THAT(refusal([&] { load_run(s, folder, 2, OtherWorkers::refuse); }),
              HasSubstr("is of 3 workers, this run has 2: the number must be the same, or "
                        "checkpoint.workers must be copy or average"));
  const auto said = [&](const Rule& rule, OtherWorkers how) {
    return refusal([&] { load_run({rule, s.options, 3}, folder, 2, how); });
  };
  for (const OtherWorkers how : {OtherWorkers::copy, OtherWorkers::average}) {
    EXPECT_THAT(said(Adam{}, how),
                HasSubstr(folder / "step-7: state: its rule is SGD, this optimizer's is Adam"));
    EXPECT_THAT(said(SGD{.momentum = 0.5}, how), HasSubstr("there is no tensor \"m.image\""));
  }
  save_run({SGD{.lr = 0.1, .momentum = 0.5}, s.options, 3}, folder);
  EXPECT_THAT(said(SGD{}, OtherWorkers::copy), HasSubstr("tensor \"m.image\" is not one of this optimizer"));
  edit(folder / "step-7/worker-2.safetensors", [](std::string& text) { text[text.size() / 2] ^= 4; });
  EXPECT_THAT(said(SGD{.momentum = 0.5}, OtherWorkers::average),
              testing::AnyOf(HasSubstr("offset 0: damaged"), HasSubstr("could not read its part")));
  EXPECT_EQ(said(SGD{.momentum = 0.5}, OtherWorkers::copy), "accepted");  // nobody reads that file
}

}  // namespace
}  // namespace starling
