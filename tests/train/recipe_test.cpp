#include "starling/train/recipe.h"

#include <cmath>
#include <numbers>

#include <ATen/ops/allclose.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "starling/optim/schemes/table.h"
#include "tests/folder.h"
#include "tests/refusal.h"

namespace starling {
namespace {

class RecipeTest : public testing::Test {
 protected:
  Recipe read(const std::string& text, const Overrides& overrides = {}) {
    spill(path_, text);
    return read_recipe(path_, overrides);
  }
  std::string error_of(const std::string& text, const Overrides& overrides = {}) {
    return refusal<UsageError>([&] { read(text, overrides); });
  }

  const Folder folder_;
  const std::string path_ = folder_ / "recipe.toml";
};

TEST_F(RecipeTest, FileThenOverrides) {
  const Recipe recipe =
      read("[optimizer]\nlr = 0.5\nwindow = 3\n", {{"optimizer.lr", "0.25"}, {"run.seed", "9"}});
  EXPECT_EQ(recipe.optimizer.lr, 0.25);
  EXPECT_EQ(std::get<AccumAdamW>(make_rule(recipe)).window, 3);
  EXPECT_EQ(recipe.run.seed, 9);
  EXPECT_EQ(recipe.mixing.topology, Recipe{}.mixing.topology);
}

TEST_F(RecipeTest, WhatIsPrintedIsReadBack) {
  const Recipe recipe = read("[optimizer]\nbetas = [0.95, 0.98]\nrule = 'sgd'\n[data]\ndir = 'a \"b\"'\n",
                             {{"mixing.max_wait", "0.25"}});
  const std::string printed = print_recipe(recipe);
  EXPECT_EQ(print_recipe(read(printed)), printed);
  EXPECT_THAT(printed, testing::HasSubstr("betas = [0.95, 0.98]"));
}

TEST_F(RecipeTest, RefusesDropsThatDoNotRise) {
  EXPECT_EQ(error_of("[schedule]\ndrops = '0.6 0.3'\n"),
            path_ + ":2: schedule.drops = \"0.6 0.3\": wants rising numbers between 0 and 1: \"0.3 0.6\"");
  for (const std::string drops : {"", "x", "0.3 x", "0.3 0.3", "0 0.5", "0.5 1", "0.5, 0.6", "nan",
                                  "0.3 nan 0.5", "0.3 0.6e", "0.3 -", "0.3 .", "0.3 0x"})
    EXPECT_THAT(error_of("[schedule]\ndrops = '" + drops + "'\n"), testing::HasSubstr("wants rising numbers"))
        << drops;
}

TEST_F(RecipeTest, Refuses) {
  EXPECT_EQ(error_of("[optimiser]\nlr = 1"),
            path_ +
                ":1: unknown section \"optimiser\", did you mean optimizer?; there are: run, data, model, "
                "optimizer, schedule, mixing, train, log, checkpoint");
  EXPECT_THAT(error_of("[optimizer]\nrule = 'accum-adm'"),
              testing::HasSubstr(":2: optimizer.rule = \"accum-adm\": "
                                 "unknown, did you mean accum-adam?"));
  EXPECT_EQ(error_of("[mixing]\nwire = 'int2'"), path_ +
                                                     ":2: mixing.wire = \"int2\": unknown, did you mean "
                                                     "int8?, allowed is one of fp32, bf16, fp16, int8, int4");
  EXPECT_THAT(error_of("[mixing]\none_in = 0"), testing::HasSubstr(":2: mixing.one_in = 0: out of range"));
  EXPECT_THAT(error_of("[mixing]\ngamma = 1.5"), testing::HasSubstr(":2: mixing.gamma = 1.5: out of range"));
  EXPECT_THAT(error_of("[run]\nepochs = 0"), testing::HasSubstr(":2: run.epochs = 0: out of range"));
  EXPECT_THAT(error_of("[run]\nepochs = 1e7"),
              testing::HasSubstr("out of range, allowed is a number above 0 and at most"));
  EXPECT_EQ(error_of("[optimizer]\nrule = 'sgd'\nnesterov = true"),
            path_ + ":3: optimizer.nesterov = true: wants optimizer.momentum above 0");
  EXPECT_EQ(error_of("[data]\nname = 'text'\n[model]\nwidth = 12\nheads = 5"),
            path_ + ":4: model.width = 12: wants a multiple of model.heads = 5");
  EXPECT_EQ(error_of("[log]\ntimeline_from = 5\ntimeline_to = 4"),
            path_ + ":3: log.timeline_to = 4: wants to be at least log.timeline_from = 5, or 0");
  EXPECT_EQ(error_of("", {{"optimizer.nesterov", "true"}}),
            "command line: optimizer.nesterov = true: wants optimizer.momentum above 0");
}

TEST_F(RecipeTest, RulesTakeWhatIsTheirs) {
  const auto rule = [&](const std::string& name) {
    return make_rule(
        read("[optimizer]\nlr = 0.3\nbetas = [0.8, 0.9]\neps = 1e-6\nweight_decay = 0.1\nmomentum = 0.7\n"
             "nesterov = true\nwindow = 5\nmuon_momentum = 0.6\nns_steps = 3\n"
             "adjust_lr_fn = 'match_rms_adamw'\n",
             {{"optimizer.rule", name}}));
  };
  EXPECT_EQ(rule("sgd"), Rule(SGD{.lr = 0.3, .momentum = 0.7, .nesterov = true, .weight_decay = 0.1}));
  EXPECT_EQ(rule("adam"), Rule(Adam{.lr = 0.3, .betas = {0.8, 0.9}, .eps = 1e-6, .weight_decay = 0.1}));
  EXPECT_EQ(rule("adamw"), Rule(AdamW{.lr = 0.3, .betas = {0.8, 0.9}, .eps = 1e-6, .weight_decay = 0.1}));
  EXPECT_EQ(rule("accum-adam"),
            Rule(AccumAdam{.lr = 0.3, .betas = {0.8, 0.9}, .eps = 1e-6, .weight_decay = 0.1, .window = 5}));
  EXPECT_EQ(rule("accum-adamw"),
            Rule(AccumAdamW{.lr = 0.3, .betas = {0.8, 0.9}, .eps = 1e-6, .weight_decay = 0.1, .window = 5}));
  EXPECT_EQ(rule("muon"), Rule(Muon{.lr = 0.3,
                                    .momentum = 0.6,
                                    .weight_decay = 0.1,
                                    .ns_steps = 3,
                                    .adjust_lr_fn = Muon::match_rms_adamw,
                                    .betas = {0.8, 0.9}}));
}

TEST_F(RecipeTest, MuonsDefaultsAreItsOwnButForTheDecay) {
  EXPECT_EQ(make_rule(read("[optimizer]\nrule = 'muon'\n")), Rule(Muon{.weight_decay = 0}));
  EXPECT_THAT(error_of("[optimizer]\nadjust_lr_fn = 'match_rms_adam'"),
              testing::HasSubstr(":2: optimizer.adjust_lr_fn = \"match_rms_adam\": unknown, did you mean "
                                 "match_rms_adamw?"));
}

TEST_F(RecipeTest, AnOptionOfARuleSaysWhoseItIs) {
  const std::string printed = print_recipe(Recipe{});
  EXPECT_THAT(printed, testing::HasSubstr("\nwindow = 8  # "));
  EXPECT_THAT(printed, testing::HasSubstr(
                           " (accum-adam, accum-adamw); a whole number at least 1 and at most 1048576\n"));
  EXPECT_THAT(printed, testing::HasSubstr(" (sgd, adam, accum-adam); "));  // weight_decay
  EXPECT_EQ(make_rule(Recipe{}), Rule(AccumAdamW{.weight_decay = 0}));
  EXPECT_THAT(error_of("[optimizer]\nmomentum = 1"),
              testing::HasSubstr(":2: optimizer.momentum = 1: out of range"));
  EXPECT_THAT(error_of("[optimizer]\nlr = 0"), testing::HasSubstr(":2: optimizer.lr = 0: out of range"));
}

TEST_F(RecipeTest, AnAutomaticDefaultIsExplainedOnce) {
  EXPECT_THAT(
      print_recipe(Recipe{}),
      testing::HasSubstr("\nmu = -1.0  # quasi-global: the share of m that a step keeps; below 0: beta; "
                         "a number at least -1 and below 1\n"));
  for (const SharedOption& shared : scheme_options()) {
    const std::string said = fmt::format("{}; {}", shared.option->meaning, default_text(*shared.option));
    EXPECT_EQ(said.find("automatic"), said.rfind("automatic")) << shared.option->name;
  }
}

SchemeSettings settings_of(const Options& options) { return SchemeSettings(options.scheme); }

TEST_F(RecipeTest, OptionsOfTheOptimizer) {
  const Options options =
      make_options(read("[mixing]\nscheme = 'all-reduce'\ntopology = 'ring'\nmax_wait = 0.0015\n"
                        "block_bytes = 1000\nworkers_per_node = 2\n"));
  EXPECT_EQ(options.scheme.name, "all-reduce");
  EXPECT_EQ(options.topology, "ring");
  // Never rounded down to no wait at all.
  EXPECT_EQ(options.max_wait, std::chrono::milliseconds(2));
  EXPECT_EQ(options.block_bytes, 1000);
  EXPECT_EQ(options.workers_per_node, 2);
  EXPECT_FALSE(make_options(Recipe{}).max_wait);
  EXPECT_EQ(options.mean_every, 0);
  EXPECT_EQ(make_options(read("[mixing]\nmean_every = 5\n")).mean_every, 5);
  const Options pier =
      make_options(read("[mixing]\nscheme = 'local'\nmean_every = 5\nouter = 'nesterov'\nouter_warmup = 10\n"
                        "outer_lr_at = '10:0 20:1.1'\nouter_momentum_at = '10:0.95'\n"));
  EXPECT_EQ(pier.outer_warmup, 10);
  EXPECT_EQ(pier.outer_lr_at, "10:0 20:1.1");
  EXPECT_EQ(pier.outer_momentum_at, "10:0.95");
  const Options choco = make_options(read("[mixing]\nscheme = 'choco'\none_in = 8\ngamma = 0.25\n"));
  EXPECT_EQ(choco.scheme.name, "choco");
  EXPECT_EQ(choco.one_in, 8);
  EXPECT_EQ(settings_of(choco).number("gamma"), 0.25);
  EXPECT_EQ(settings_of(make_options(read("[mixing]\nscheme = 'choco'\n"))).number("gamma"), 0);
  EXPECT_FALSE(make_options(read("[model]\ndtype = 'bf16'\n")).loss_scaling);
  const Options fp16 =
      make_options(read("[model]\ndtype = 'fp16'\n[train]\nloss_scale = 8\nloss_scale_steps = 5\n"));
  EXPECT_EQ(fp16.loss_scaling->initial, 8);
  EXPECT_EQ(fp16.loss_scaling->grow_every, 5);
  EXPECT_EQ(settings_of(make_options(read("[mixing]\nscheme = 'ad-psgd'\n"))).number("rate"), 1);
  const Options gossip = make_options(read("[mixing]\nscheme = 'a2cid2'\nrate = 0.5\n"));
  EXPECT_EQ(gossip.scheme.name, "a2cid2");
  const SchemeSettings pairs = settings_of(gossip);
  EXPECT_EQ(pairs.number("rate"), 0.5);
  EXPECT_EQ(pairs.text("clock"), "poisson");
  EXPECT_FALSE(pairs.automatic("eta") || pairs.automatic("alpha_tilde"));
  const SchemeSettings given = settings_of(
      make_options(read("[mixing]\nscheme = 'a2cid2'\nclock = 'fixed'\neta = 0\nalpha_tilde = 0.7\n")));
  EXPECT_EQ(given.text("clock"), "fixed");
  EXPECT_EQ(given.automatic("eta"), 0);
  EXPECT_EQ(given.automatic("alpha_tilde"), 0.7);
  const Options swarm = make_options(read("[mixing]\nscheme = 'swarm'\nlocal_steps = 4\n"));
  EXPECT_EQ(settings_of(swarm).integer("local_steps"), 4);
  const Options push_sum = make_options(read("[mixing]\nscheme = 'push-sum'\nstaleness = 1\n"));
  EXPECT_EQ(settings_of(push_sum).integer("staleness"), 1);
}

Recipe scheduled(const std::string& name, double lr, double warmup) {
  Recipe recipe;
  recipe.optimizer.lr = lr;
  recipe.schedule.name = name;
  recipe.schedule.warmup = warmup;
  return recipe;
}

TEST(LearningRate, ConstantWithWarmup) {
  const Recipe recipe = scheduled("constant", 0.4, 0.2);
  for (int step = 0; step < 4; ++step) EXPECT_DOUBLE_EQ(learning_rate(recipe, step, 20), 0.1 * (step + 1));
  for (int step = 4; step < 20; ++step) EXPECT_EQ(learning_rate(recipe, step, 20), 0.4);
}

TEST(LearningRate, CosineWithWarmup) {
  Recipe recipe = scheduled("cosine", 2, 0.1);
  recipe.schedule.final = 0.25;
  EXPECT_DOUBLE_EQ(learning_rate(recipe, 0, 100), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(recipe, 9, 100), 2);
  EXPECT_DOUBLE_EQ(learning_rate(recipe, 10, 100), 2);
  EXPECT_DOUBLE_EQ(learning_rate(recipe, 55, 100), 2 * (0.25 + 0.75 / 2));  // half way down
  for (int step = 10; step < 100; ++step) {
    const double expected =
        2 * (0.25 + 0.75 * std::pow(std::cos(std::numbers::pi * (step - 10) / 90 / 2), 2));
    EXPECT_NEAR(learning_rate(recipe, step, 100), expected, 1e-12);
  }
  recipe.schedule.warmup = 0;
  EXPECT_DOUBLE_EQ(learning_rate(recipe, 0, 1), 2);
}

TEST(LearningRate, InverseSquareRootIsThePapersTransformersSchedule) {
  Recipe recipe = scheduled("inverse-sqrt", 0.5, 0.1);
  for (int step = 0; step < 200; ++step) {
    // lr sqrt(w) min(s^-0.5, s w^-1.5), with s from 1 on and w = 20
    const double s = step + 1;
    EXPECT_NEAR(learning_rate(recipe, step, 200),
                0.5 * std::sqrt(20) * std::min(std::pow(s, -0.5), s * std::pow(20, -1.5)), 1e-12);
  }
  recipe.schedule.warmup = 0;
  EXPECT_DOUBLE_EQ(learning_rate(recipe, 0, 100), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(recipe, 3, 100), 0.25);
}

TEST(LearningRate, FallsInSteps) {
  Recipe recipe = scheduled("steps", 2, 0.1);
  recipe.schedule.drops = "0.3 0.6 0.85";
  EXPECT_DOUBLE_EQ(learning_rate(recipe, 4, 100), 1);
  for (const auto& [step, expected] : std::vector<std::pair<int, double>>{
           {10, 2}, {29, 2}, {30, 0.2}, {59, 0.2}, {60, 0.02}, {84, 0.02}, {85, 0.002}, {99, 0.002}})
    EXPECT_DOUBLE_EQ(learning_rate(recipe, step, 100), expected) << step;
}

TEST(LearningRate, WarmupOfTheWholeRun) {
  Recipe recipe;
  recipe.optimizer.lr = 1;
  recipe.schedule.warmup = 1;
  EXPECT_DOUBLE_EQ(learning_rate(recipe, 9, 10), 1);
  EXPECT_DOUBLE_EQ(learning_rate(recipe, 4, 10), 0.5);
}

TEST(MakeOptimizer, ParametersDecayAsTheRecipeSays) {
  for (const auto& [decay, of_bias] : {std::pair{"all", 0.95}, {"matrices", 1.0}}) {
    Recipe recipe;
    Config config = recipe_config(recipe);
    config.set("optimizer.rule", "adamw");
    config.set("optimizer.lr", "0.1");
    config.set("optimizer.weight_decay", "0.5");
    config.set("optimizer.decay", decay);
    torch::nn::Linear model(3, 2);
    const at::Tensor weight = model->weight.detach().clone(), bias = model->bias.detach().clone();
    const auto optimizer = make_optimizer(recipe, *model, World::alone());
    for (const at::Tensor& p : model->parameters()) p.mutable_grad() = at::zeros_like(p);
    optimizer->step();
    EXPECT_TRUE(at::allclose(model->weight, 0.95 * weight)) << decay;
    EXPECT_TRUE(at::allclose(model->bias, of_bias * bias)) << decay;
    // Under these names `starling eval` and others find them in a checkpoint.
    for (const char* name : {"model.weight", "model.bias"})
      EXPECT_TRUE(optimizer->state().tensors.contains(name)) << decay;
  }
}

TEST(MakeOptimizer, MuonTakesNeitherEmbeddingsNorBiases) {
  for (const std::string decay : {"all", "matrices"}) {
    Recipe recipe;
    Config config = recipe_config(recipe);
    config.set("optimizer.rule", "muon");
    config.set("optimizer.decay", decay);
    torch::nn::Sequential model(torch::nn::Embedding(4, 3), torch::nn::Linear(3, 2));
    const auto optimizer = make_optimizer(recipe, *model, World::alone());
    const OptimizerState state = optimizer->state();
    // A second moment is AdamW's.
    for (const char* name : {"v.0.weight", "v.1.bias"}) EXPECT_TRUE(state.tensors.contains(name)) << decay;
    EXPECT_FALSE(state.tensors.contains("v.1.weight")) << decay;
  }
}

}  // namespace
}  // namespace starling
