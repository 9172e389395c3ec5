// Workers train on a GPU as on the CPU, to the bit.
#include "starling/optim/clipping.h"
#include "starling/transport/transport.h"
#include "tests/optim/other_device.h"

namespace starling {

namespace {

// Runs before torch does any work. Otherwise the tests that need a GPU would find none.
class Cuda : public testing::Environment {
  void SetUp() override { find_cuda(); }
};
const auto* const kCuda = testing::AddGlobalTestEnvironment(new Cuda);

class OnAnotherDevice : public OtherDevice {
 protected:
  After train(const Case& the, int me, World& world, Where where) {
    std::vector<Tensor> all;
    std::vector<Block> blocks = some_blocks(the, me, where, all);
    const Schedule schedule = make_schedule(the.topology, world.size);
    std::vector<std::size_t> sizes;
    for (Block& block : blocks) {
      block.grid.remember(schedule.rounds.size() * static_cast<std::size_t>(the.one_in));
      sizes.push_back(static_cast<std::size_t>(block.length));
    }
    Exchange exchange(world.make_transport(world, "device"), schedule, sizes,
                      {.log = world.log, .contents = {.wire = the.wire, .one_in = the.one_in}});
    exchange.meet();
    Clipping clipping(the.clip, /*skip=*/false, std::nullopt);
    const bool around = the.scheme == "around";
    LocalStep local = around ? LocalStep(
                                   blocks,
                                   [&] {
                                     drain();
                                     for (Tensor& p : all) {
                                       if (p.grad().defined()) p.sub_(p.grad(), 0.1);
                                     }
                                   },
                                   clipping)
                             : LocalStep(blocks, [&](int) -> const Rule& { return the.rule; }, clipping);
    const Options options{.topology = the.topology, .scheme = around ? "cta" : the.scheme};
    const std::unique_ptr<Scheme> scheme = scheme_of(options).make({blocks, local, world, options});
    scheme->attach({.schedule = schedule, .of_members = schedule, .exchange = &exchange});
    const c10::AutoGradMode no_gradient(false);
    scheme->begin();
    for (int t = 0; t < kSteps; ++t) {
      give_gradients(all, me, t);
      settle(blocks);
      scheme->step();
      drain();
    }
    settle(blocks);
    with_masters(blocks);
    settle(blocks);
    std::int64_t nothing = 0;
    exchange.maximum({&nothing, 1});  // no worker leaves while others wait for it
    return bytes_after(all, blocks);
  }

  void expect_the_same(Where where) {
    Case the = GetParam();
    if (where == Where::cuda) the.clip = 0;  // its sums of squares have other last bits
    const auto run = [&](Where one) {
      return results_of(kWorkers, [&](int i, World& world) { return train(the, i, world, one); });
    };
    const std::vector<After> there = run(where), here = run(Where::here);
    for (std::size_t i = 0; i < there.size(); ++i) {
      ASSERT_EQ(there[i].size(), here[i].size());
      for (std::size_t k = 0; k < here[i].size(); ++k)
        EXPECT_TRUE(there[i][k] == here[i][k]) << "worker " << i << ", tensor " << k;
    }
    EXPECT_FALSE(here[0] == here[1]);
  }
};

TEST_P(OnAnotherDevice, WorkersTrainAsOnTheProcessorToTheBit) { expect_the_same(Where::other); }

// All workers share the card.
TEST_P(OnAnotherDevice, WorkersTrainOnAGpuAsOnTheProcessorToTheBit) {
  if (const std::string why = find_cuda(); !why.empty()) GTEST_SKIP() << why;
  if (GetParam().scheme == "around") GTEST_SKIP() << "torch's own step rounds otherwise on a GPU";
  TearDown();  // the real compiler, once for all
  expect_the_same(Where::cuda);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, OnAnotherDevice,
    testing::Values(
        Case{.name = "fp32"}, Case{.name = "bf16_wire", .wire = Wire::bf16},
        Case{.name = "fp16_wire", .wire = Wire::fp16}, Case{.name = "int8_wire", .wire = Wire::int8},
        Case{.name = "int4_wire", .wire = Wire::int4},
        Case{.name = "bf16_parameters", .rule = AdamW{.lr = 0.05}, .type = at::kBFloat16},
        Case{.name = "fp16_parameters", .rule = Adam{.lr = 0.05}, .wire = Wire::bf16, .type = at::kHalf},
        Case{.name = "sgd", .rule = SGD{.lr = 0.1}},
        Case{.name = "momentum", .rule = SGD{.lr = 0.1, .momentum = 0.9}, .topology = "base-2"},
        Case{.name = "accumulated", .rule = AccumAdamW{.lr = 0.05, .window = 2}},
        Case{.name = "accumulated_with_decay",
             .rule = AccumAdam{.lr = 0.05, .weight_decay = 0.1, .window = 2},
             .type = at::kBFloat16},
        Case{.name = "mean_of_a_group", .wire = Wire::bf16, .topology = "complete"},
        Case{.name = "random_k", .one_in = 4}, Case{.name = "random_k_int8", .wire = Wire::int8, .one_in = 3},
        Case{.name = "atc", .scheme = "atc"}, Case{.name = "atc_int8", .wire = Wire::int8, .scheme = "atc"},
        Case{.name = "around", .scheme = "around"},
        Case{.name = "around_int4", .wire = Wire::int4, .scheme = "around"}),
    [](const auto& info) { return info.param.name; });

using ADeviceThatFails = OtherDevice;

TEST_F(ADeviceThatFails, TellsTheThreadThatWaits) {
  Tensor p = at::randn({100}).set_requires_grad(true);
  p.mutable_grad() = at::randn({100});
  std::vector<Block> blocks;
  append_blocks(blocks, {torch::optim::OptimizerParamGroup({p})}, 0, 1);
  blocks[0].on_device = device()->passes();
  std::vector<float> outgoing(100);
  fail(true);
  const std::string failure = "CUDA: GPU 0: the GPU's work: error 719, unspecified launch failure";
  EXPECT_EQ(refusal([&] { update(blocks[0], SGD{}, {}, outgoing.data()); }), failure);
  EXPECT_EQ(refusal([&] { settle(blocks); }), failure);
  fail(false);
  EXPECT_EQ(refusal([&] { update(blocks[0], SGD{}, {}, outgoing.data()); }),
            failure);  // it does not come back
  drain();             // queued work still runs and needs its memory
}

// A block with an infinite parameter is not sent, and the neighbours go on without it.
TEST_F(ADeviceThatFails, NoticesValuesThatAreNotFinite) {
  for (const bool bad : {false, true}) {
    Tensor p = at::randn({5000}).set_requires_grad(true);
    p.mutable_grad() = at::zeros({5000});
    if (bad) p.mutable_grad()[4999] = INFINITY;
    std::vector<Block> blocks;
    append_blocks(blocks, {torch::optim::OptimizerParamGroup({p})}, 0, 1);
    blocks[0].on_device = device()->passes();
    std::vector<float> outgoing(5000);
    EXPECT_EQ(update(blocks[0], SGD{}, {}, outgoing.data()), !bad);
  }
}

TEST(OnNoDevice, ParametersMustStayWhereTheyAre) {
  std::vector<Tensor> all{at::randn({10}).set_requires_grad(true)};
  std::vector<Block> blocks;
  append_blocks(blocks, {torch::optim::OptimizerParamGroup(all)}, 0, 1);
  blocks[0].segments[0].parameter = at::empty({10}, at::TensorOptions().device(at::kMeta));
  EXPECT_EQ(refusal<UsageError>([&] { mix(blocks[0], {}, {}); }),
            "a parameter [10] was on cpu when the optimizer was made and is on meta now: it must stay there");
}

}  // namespace
}  // namespace starling
