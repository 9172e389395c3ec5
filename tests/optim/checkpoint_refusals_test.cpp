// Files that are damaged or of another optimizer, and optimizers that cannot be saved.
#include <torch/optim/adagrad.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include "tests/optim/checkpointed.h"

namespace starling {
namespace {

using testing::HasSubstr;

TEST(Checkpoint, GridsOfAnotherWireAreNotTakenAndWrongOnesAreRefused) {
  const Folder folder;
  const World world = World::alone();
  Net net;
  Optimizer narrow(net, SGD{.lr = 0.1}, {.wire = Wire::int8}, world);
  Optimizer wide(net, SGD{.lr = 0.1}, {}, world), narrower(net, SGD{.lr = 0.1}, {.wire = Wire::int4}, world);
  narrow.save(folder / "a");
  wide.save(folder / "b");
  wide.load(folder / "a"), narrower.load(folder / "a"), narrow.load(folder / "b"), narrow.load(folder / "a");
  EXPECT_THAT(SafetensorsReader(folder / "a").metadata().at("grids.int8"), testing::StartsWith("-17 -17 "));
  edit(folder / "a", [](std::string& text) { text.replace(text.find("\"-17 -17"), 8, "\"-17 -31"); });
  EXPECT_THAT(refusal([&] { narrow.load(folder / "a"); }),
              testing::ContainsRegex("grids.int8 \"-17 -31 .*\" are not numbers from -30 to 20"));
}

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
  edit(file, [](std::string& text) { text[text.size() / 2] ^= 4; });
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
  const std::string path = folder / "a";
  const auto make = [&](std::vector<std::int64_t> sizes, Rule rule) {
    std::vector<Tensor> parameters;
    for (const std::int64_t size : sizes) parameters.push_back(parameter({size}, 1));
    return std::make_unique<Optimizer>(parameters, rule, Options{}, World::alone());
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
  const std::string path = folder / "a";
  const auto with = [&](const Inner& make, const std::function<void(Optimizer&)>& f) {
    const Tensor a = parameter({2}, 1), b = parameter({3}, 1);
    const auto inner = make({a, b});
    Optimizer optimizer(*inner, {}, World::alone());
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
  Optimizer own({at::ones({2})}, Adam{}, {}, World::alone());
  EXPECT_EQ(refusal([&] { own.load(path); }),
            path + ": offset 8: its rule is torch::optim::Adam, this optimizer's is Adam");

  // Changes one thing in a file: a name to one of the same length, or a number.
  const auto renamed = [&](const Inner& make, const std::string& from, const std::string& to) {
    save(make);
    edit(path, [&](std::string& text) { text.replace(text.find('"' + from + '"') + 1, from.size(), to); });
    return said(make);
  };
  const auto option = [&](const Inner& make, std::size_t index, double value) {
    save(make);
    put(path, "options.0", index, value);
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
  const std::vector<Tensor> parameters{parameter({2}, 1)};
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
  const Tensor table = parameter({4, 2}, 1);
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
  const std::string path = folder / "a";
  Optimizer optimizer({parameter({2}, 1)}, AccumAdam{}, {}, World::alone());
  optimizer.save(path);
  const std::string whole = slurp(path);
  const auto said = [&](const std::string& tensor, std::size_t index, auto value) {
    spill(path, whole);
    put(path, tensor, index, value);
    return refusal([&] { optimizer.load(path); });
  };
  EXPECT_THAT(said("options.0", 0, -1.0),
              HasSubstr("tensor \"options.0\": AccumAdam: lr = -1 is not allowed"));
  EXPECT_THAT(said("options.0", 0, std::nan("")), HasSubstr("lr = nan is not allowed"));
  EXPECT_THAT(said("options.0", 5, 1e300),
              HasSubstr("option 6 = 1e+300 is not allowed: it must be a whole number"));
  EXPECT_THAT(said("options.0", 5, 2.5), HasSubstr("option 6 = 2.5 is not allowed: it must be a whole"));
  EXPECT_THAT(said("options.0", 5, std::nan("")), HasSubstr("it must be a whole number"));
  EXPECT_THAT(said("steps", 0, std::int64_t{-1}), HasSubstr("tensor \"steps\": a count is negative"));
  EXPECT_THAT(said("rng", 0, std::uint64_t{1}), HasSubstr("accepted"));  // the seed may be anything
  for (std::size_t word = 0; word < 600; ++word) said("rng", word, ~std::uint64_t{0});  // no crash
  spill(path, whole);
  edit(path,
       [](std::string& text) { text.replace(text.find("\"position\":\"0\""), 14, "\"position\":\"x\""); });
  EXPECT_THAT(refusal([&] { optimizer.load(path); }), HasSubstr("position \"x\" is not a number from 0"));
}

TEST(Checkpoint, TorchsArchivesAreRefused) {
  Optimizer optimizer({parameter({2}, 1)}, SGD{}, {}, World::alone());
  torch::serialize::OutputArchive out;
  EXPECT_THAT(refusal([&] { optimizer.save(out); }), HasSubstr("use save(file)"));
  torch::serialize::InputArchive in;
  EXPECT_THAT(refusal([&] { optimizer.load(in); }), HasSubstr("use load(file)"));
}

}  // namespace
}  // namespace starling
