// Blocks on a GPU have the bits of the CPU, through streams, copies and the device's thread. The
// GPU is the mock driver tests/kernels/cuda/other_driver.cpp. It uses the host's memory, and does
// all work as late as possible. Workers are threads.
#include "starling/optim/cuda/device.h"

#include <cstdlib>

#include <dlfcn.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "starling/optim/blocks.h"
#include "starling/optim/clipping.h"
#include "starling/optim/cuda/held_on_device.h"
#include "starling/optim/options.h"
#include "starling/optim/pass.h"
#include "starling/optim/rule_step.h"
#include "starling/optim/schemes/table.h"
#include "starling/topology/schedules.h"
#include "starling/transport/transport.h"
#include "tests/checkpoint/folder.h"
#include "tests/kernels/cuda/other_nvrtc.h"
#include "tests/optim/flock.h"
#include "tests/virtual_workers.h"

namespace starling {
namespace {

using at::Tensor;

// Runs before torch does any work. Otherwise the tests that need a GPU would find none.
class Cuda : public testing::Environment {
  void SetUp() override { find_cuda(); }
};
const auto* const kCuda = testing::AddGlobalTestEnvironment(new Cuda);

constexpr int kSteps = 5;

struct Case {
  std::string name;
  Rule rule = AdamW{.lr = 0.05};
  Wire wire = Wire::fp32;
  at::ScalarType type = at::kFloat;
  std::string scheme = "cta";
  std::string topology = "ring";
  int one_in = 1;
  double clip = 20;
};
void PrintTo(const Case& the, std::ostream* out) { *out << the.name; }

// A worker's parameters, masters and rule state at the end, as bytes.
using After = std::vector<std::vector<std::byte>>;

std::vector<std::byte> bytes_in(const Tensor& tensor) {
  const Tensor here = tensor.cpu();
  const auto* const bytes = static_cast<const std::byte*>(here.const_data_ptr());
  return {bytes, bytes + here.nbytes()};
}

class OnAnotherDevice : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    setenv("XDG_CACHE_HOME", (cache_ / "").c_str(), 1);
    setenv("STARLING_NVRTC", kernels::cuda::other_nvrtc().c_str(), 1);
    library_ = dlopen(kernels::cuda::other_driver().c_str(), RTLD_NOW);
    ASSERT_NE(library_, nullptr) << dlerror();
  }
  void TearDown() override {
    unsetenv("XDG_CACHE_HOME");
    unsetenv("STARLING_NVRTC");
  }
  std::shared_ptr<CudaDevice> device() {
    return std::make_shared<CudaDevice>(
        std::make_unique<kernels::cuda::Gpu>(0, kernels::cuda::other_driver()), at::TensorOptions(at::kByte),
        at::TensorOptions(at::kByte), [] { return nullptr; });
  }
  // Empties the default stream, as torch's next work in it would.
  void drain() { reinterpret_cast<void (*)()>(dlsym(library_, "other_driver_drain"))(); }
  void fail(bool now) { reinterpret_cast<void (*)(bool)>(dlsym(library_, "other_driver_fail"))(now); }

  // On the CPU, on the mock GPU, or on a real one.
  enum class Where { here, other, cuda };
  After train(const Case& the, int me, World& world, Where where);
  void expect_the_same(Where where);
  After gossip(const Case& the, int me, World& world, VirtualTime& time, Where where);
  void expect_the_same_gossip(const Case& the, Where where);

 private:
  Folder cache_;
  void* library_ = nullptr;
};

// More than one block, of unaligned sizes. `all`: the parameters. gpu: null, or the mock one.
std::vector<Block> some_blocks(const Case& the, int me, at::Device place, std::vector<Tensor>& all,
                               const std::shared_ptr<CudaDevice>& gpu) {
  {
    const c10::AutoGradMode no_gradient(false);
    for (const int n : {3, 5000, 17, 66'000, 4097})
      all.push_back((at::arange(n, at::kFloat) + 100.0 * me).sin().to(the.type).to(place));
  }
  for (Tensor& p : all) p.set_requires_grad(true);
  std::vector<Block> blocks;
  append_blocks(blocks, {torch::optim::OptimizerParamGroup(all)}, 0, 1, the.wire);
  EXPECT_GE(blocks.size(), 2u);
  for (Block& block : blocks) {
    block.keep(rule_states(the.rule));
    if (gpu) block.on_device = gpu->passes();
  }
  return blocks;
}

// One parameter has no gradient in some steps.
void give_gradients(std::vector<Tensor>& all, int me, int t) {
  for (std::size_t k = 0; k < all.size(); ++k) {
    Tensor& g = all[k].mutable_grad();
    if (g.defined()) g.zero_();  // as zero_grad() does; the update must not see it
    if (k == 2 && t % 2 == 1) {
      g.reset();
    } else {
      g = all[k] - centre(me, t);
    }
  }
}

After bytes_after(const std::vector<Tensor>& all, const std::vector<Block>& blocks) {
  After after;
  for (const Tensor& p : all) after.push_back(bytes_in(p));
  for (const Block& block : blocks) {
    for (const Segment& s : block.segments) {
      if (s.master.defined()) after.push_back(bytes_in(s.master));
    }
    for (const Tensor& state : block.states) after.push_back(bytes_in(state));
    const std::vector<int> grid = block.grid.state();
    const auto exponents = std::as_bytes(std::span(grid));
    after.emplace_back(exponents.begin(), exponents.end());
  }
  return after;
}

// Adds the scheme's state of each value.
class BytesOfState final : public StateVisitor {
 public:
  BytesOfState(std::vector<Block>& blocks, After& after) : blocks_(blocks), after_(after) {}
  void values(const std::string&, Fresh, const Access& access) override {
    for (Block& block : blocks_)
      access(block, [&](const Tensor& values) { after_.push_back(bytes_in(values)); });
  }
  void numbers(const std::string&, const Numbers&) override {}

 private:
  std::vector<Block>& blocks_;
  After& after_;
};

After OnAnotherDevice::train(const Case& the, int me, World& world, Where where) {
  const bool on_device = where == Where::other;
  const at::Device place(where == Where::cuda ? at::kCUDA : at::kCPU, where == Where::cuda ? 0 : -1);
  std::vector<Tensor> all;
  std::vector<Block> blocks = some_blocks(the, me, place, all, on_device ? device() : nullptr);
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
  scheme->attach({.schedule = schedule, .exchange = &exchange});
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

void OnAnotherDevice::expect_the_same(Where where) {
  Case the = GetParam();
  if (where == Where::cuda) the.clip = 0;  // its sums of squares have other last bits
  std::vector<After> there(kWorkers), here(kWorkers);
  flock(kWorkers,
        [&](int i, World& world) { there[static_cast<std::size_t>(i)] = train(the, i, world, where); });
  flock(kWorkers,
        [&](int i, World& world) { here[static_cast<std::size_t>(i)] = train(the, i, world, Where::here); });
  for (std::size_t i = 0; i < there.size(); ++i) {
    ASSERT_EQ(there[i].size(), here[i].size());
    for (std::size_t k = 0; k < here[i].size(); ++k)
      EXPECT_TRUE(there[i][k] == here[i][k]) << "worker " << i << ", tensor " << k;
  }
  EXPECT_FALSE(here[0] == here[1]);
}

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

// ---------------------------------------------------------------- gossip

using GossipOnAnotherDevice = OnAnotherDevice;

// All operations on a block, one after the other.
TEST_F(GossipOnAnotherDevice, BlocksAreHeldAsOnTheProcessorToTheBit) {
  constexpr std::size_t n = 5002;
  const Tensor x = at::randn({n});
  const auto values = [&](double noise) {
    const Tensor all = x + noise * at::randn({n});
    return std::vector<float>(all.const_data_ptr<float>(), all.const_data_ptr<float>() + n);
  };
  for (const Wire wire : {Wire::fp32, Wire::bf16, Wire::fp16, Wire::int8, Wire::int4}) {
    const auto sent = [&](HeldBlock& block, double eta_tau) {
      const auto bytes = std::make_shared<std::vector<std::byte>>(block_bytes(wire, n));
      Trailer trailer{.exponent = wire == Wire::int4 ? -2 : -5};
      kernels::WireBlock q(bytes->data(), wire);
      q.exponent = trailer.exponent, q.sum = &trailer.sum;
      EXPECT_TRUE(block.send(eta_tau, q, 1));
      set_trailer(*bytes, wire, trailer);
      return SentBlock({bytes, *bytes}, wire);
    };
    for (const bool momentum : {false, true}) {
      SCOPED_TRACE(testing::Message() << name_of(wire) << (momentum ? ", momentum" : ""));
      const auto stream = std::make_shared<CudaGossip>(device());
      const Beside beside{.x_tilde = momentum};
      HostBlock here(values(0), beside), other(values(0.1), {});
      CudaHeld there(stream, x.clone(), beside);
      const auto same = [&] {
        stream->wait();
        const Held a = here.now(), b = there.now();
        return std::ranges::equal(a.x, b.x) && std::ranges::equal(a.x_tilde, b.x_tilde);
      };
      const SentBlock q_j = sent(other, 0), q_i = sent(here, 0.2), copy = sent(there, 0.2);
      EXPECT_TRUE(std::ranges::equal(q_i.bytes(), copy.bytes()));
      const auto measured = here.average(0.3, 0.5F, 0.8F, q_j, q_i);
      const auto measured_there = there.average(0.3, 0.5F, 0.8F, q_j, copy);
      EXPECT_EQ(measured.largest, measured_there.largest);
      EXPECT_EQ(measured.sum, measured_there.sum);
      EXPECT_EQ(measured.largest > 0, is_modular(wire));
      EXPECT_TRUE(same());
      here.mix_momentum(0.1), there.mix_momentum(0.1);
      EXPECT_TRUE(same());
      // Now x~ is not x, and it matters that the momentum comes first.
      const SentBlock again = sent(here, 0.2), again_there = sent(there, 0.2);
      EXPECT_TRUE(std::ranges::equal(again.bytes(), again_there.bytes()));
      here.average(0.3, 0.5F, 0.8F, q_j, again), there.average(0.3, 0.5F, 0.8F, q_j, again_there);
      EXPECT_TRUE(same());
      if (!is_modular(wire)) here.move_towards(q_j, 0.3F), there.move_towards(q_j, 0.3F);
      EXPECT_TRUE(same());
      EXPECT_FALSE(std::ranges::equal(here.now().x, values(0)));
    }
  }
}

// The tracked gradients that push-pull sends beside x, and their addition at the other end.
TEST_F(GossipOnAnotherDevice, SendsAndAddsTrackedGradientsToTheBit) {
  constexpr std::size_t n = 5001;
  const Tensor x = at::randn({n});
  for (const Wire wire : {Wire::fp32, Wire::bf16, Wire::fp16}) {
    SCOPED_TRACE(name_of(wire));
    const auto stream = std::make_shared<CudaGossip>(device());
    HostBlock here({x.const_data_ptr<float>(), x.const_data_ptr<float>() + n}, {.y = true});
    CudaHeld there(stream, x.clone(), {.y = true});
    for (std::size_t i = 0; i < n; ++i) here.now().y[i] = there.now().y[i] = std::sin(static_cast<float>(i));
    for (const float times : {1.F, 2.F}) {
      std::vector<SentBlock> q;
      for (HeldBlock* const block : {static_cast<HeldBlock*>(&here), static_cast<HeldBlock*>(&there)}) {
        const auto bytes = std::make_shared<std::vector<std::byte>>(bytes_of(wire, 2 * n));
        EXPECT_TRUE(block->send(0, {bytes->data(), wire}, times));
        q.push_back(SentBlock({bytes, *bytes}, wire));
      }
      EXPECT_TRUE(std::ranges::equal(q[0].bytes(), q[1].bytes()));
      here.add_tracked(q[0], -0.3F), there.add_tracked(q[1], -0.3F);
      stream->wait();
      EXPECT_TRUE(std::ranges::equal(here.now().y, there.now().y));
    }
  }
}

TEST_F(GossipOnAnotherDevice, CatchesUpWithTorchsStream) {
  const std::shared_ptr<CudaDevice> gpu = device();
  CudaGossip stream(gpu);
  int from = 7, to = 0;
  gpu->gpu().upload(&to, &from, sizeof to, gpu->current());
  EXPECT_EQ(to, 0);
  stream.wait_for_torch();
  EXPECT_EQ(to, 7);
}

TEST_F(GossipOnAnotherDevice, DoesNotSendValuesThatAreNotFinite) {
  const auto stream = std::make_shared<CudaGossip>(device());
  Tensor x = at::randn({5000});
  x[4999] = INFINITY;
  CudaHeld block(stream, x, {});
  std::vector<float> outgoing(5000);
  EXPECT_FALSE(block.send(0, outgoing.data(), 1));
}

TEST_F(GossipOnAnotherDevice, TheTrainingThreadIsToldOfAGpuThatFails) {
  const auto stream = std::make_shared<CudaGossip>(device());
  CudaHeld block(stream, at::randn({100}), {.x_tilde = true});
  std::vector<float> outgoing(100);
  fail(true);
  EXPECT_FALSE(block.send(0.1, outgoing.data(), 1));
  fail(false);
  EXPECT_EQ(refusal([&] { stream->wait_for_torch(); }),
            "CUDA: the GPU's work: error 719, unspecified launch failure");
  drain();
}

// Workers of a virtual cluster have different speeds. In the middle, gossip begins anew from the
// parameters.
After OnAnotherDevice::gossip(const Case& the, int me, World& world, VirtualTime& time, Where where) {
  const bool on_device = where == Where::other;
  const at::Device place(where == Where::cuda ? at::kCUDA : at::kCPU, where == Where::cuda ? 0 : -1);
  std::vector<Tensor> all;
  std::vector<Block> blocks = some_blocks(the, me, place, all, on_device ? device() : nullptr);
  const Options options{.topology = the.topology, .scheme = {the.scheme, {{"rate", 2}}}, .wire = the.wire};
  Clipping clipping;
  LocalStep local(blocks, [&](int) -> const Rule& { return the.rule; }, clipping);
  const std::unique_ptr<Scheme> made = scheme_of(options).make({blocks, local, world, options});
  Scheme& scheme = *made;
  const Schedule schedule = schedule_of(options, kWorkers, 1);
  scheme.attach(
      {.schedule = schedule, .make_transport = [&] { return world.make_transport(world, "device"); }});
  const c10::AutoGradMode no_gradient(false);
  scheme.begin();
  for (int t = 0; t < 4 * kSteps; ++t) {
    time.sleep(std::chrono::milliseconds(20 + 7 * me));
    give_gradients(all, me, t);
    settle(blocks);
    scheme.step();
    drain();
    if (t != 2 * kSteps) continue;
    scheme.pause();
    scheme.renew();
    drain();
    for (Tensor& p : all) p.mul_(0.5);
    scheme.restart();
    scheme.begin();
  }
  scheme.stand_by();
  time.sleep(std::chrono::seconds(1));
  scheme.pause();
  time.sleep(std::chrono::seconds(10));  // others still average
  scheme.renew();
  EXPECT_GT(scheme.gossip()->averaged, 5U);
  drain();
  settle(blocks);
  After after = bytes_after(all, blocks);
  BytesOfState bytes(blocks, after);
  scheme.state(bytes);
  return after;
}

void OnAnotherDevice::expect_the_same_gossip(const Case& the, Where where) {
  SCOPED_TRACE(the.name);
  std::vector<std::vector<After>> both;
  for (const Where one : {Where::here, where}) {
    std::vector<After>& ends = both.emplace_back(kWorkers);
    const auto time = std::make_shared<VirtualTime>(kWorkers);
    std::vector<World> worlds = World::threads(kWorkers);
    const auto transports = local_transports(virtual_network(time, 1e8));
    virtual_workers(*time, kWorkers, [&](int i) {
      World& world = worlds[static_cast<std::size_t>(i)];
      world.make_transport = transports;
      ends[static_cast<std::size_t>(i)] = gossip(the, i, world, *time, one);
    });
  }
  EXPECT_TRUE(both[0] == both[1]);
  EXPECT_FALSE(both[0][0] == both[0][1]);
}

const Case kGossip[] = {
    {.name = "a2cid2", .scheme = "a2cid2"},
    {.name = "a2cid2_int8", .wire = Wire::int8, .scheme = "a2cid2"},
    {.name = "a2cid2_of_bf16_parameters", .type = at::kBFloat16, .scheme = "a2cid2"},
    {.name = "ad_psgd_int4", .wire = Wire::int4, .scheme = "ad-psgd"},
    {.name = "pushes", .wire = Wire::bf16, .scheme = "async-push-sum", .topology = "n-peer-exponential-1"},
    {.name = "pushes_of_fp16_parameters",
     .type = at::kHalf,
     .scheme = "async-push-sum",
     .topology = "n-peer-exponential-1"},
    {.name = "tracked",
     .rule = SGD{.lr = 0.05},
     .scheme = "async-push-pull",
     .topology = "n-peer-exponential-1"},
    {.name = "tracked_of_bf16_parameters",
     .rule = SGD{.lr = 0.05},
     .wire = Wire::bf16,
     .type = at::kBFloat16,
     .scheme = "async-push-pull",
     .topology = "n-peer-exponential-1"}};

TEST_F(GossipOnAnotherDevice, WorkersTrainAsOnTheProcessorToTheBit) {
  for (const Case& the : kGossip) expect_the_same_gossip(the, Where::other);
}

TEST_F(GossipOnAnotherDevice, WorkersTrainOnAGpuAsOnTheProcessorToTheBit) {
  if (const std::string why = find_cuda(); !why.empty()) GTEST_SKIP() << why;
  TearDown();  // the real compiler
  for (const Case& the : kGossip) expect_the_same_gossip(the, Where::cuda);
}

// ---------------------------------------------------------------- what goes wrong

using ADeviceThatFails = OnAnotherDevice;

TEST_F(ADeviceThatFails, TellsTheThreadThatWaits) {
  Tensor p = at::randn({100}).set_requires_grad(true);
  p.mutable_grad() = at::randn({100});
  std::vector<Block> blocks;
  append_blocks(blocks, {torch::optim::OptimizerParamGroup({p})}, 0, 1);
  blocks[0].on_device = device()->passes();
  std::vector<float> outgoing(100);
  fail(true);
  const std::string failure = "CUDA: the GPU's work: error 719, unspecified launch failure";
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

// 50 steps of a small model with clipping, a skipped step, the average model, and a state that is
// saved and restored half-way. With "around", torch's optimizer is inside.
std::vector<Tensor> fifty_steps(int me, World& world, at::Device place, const std::string& scheme) {
  const bool around = scheme == "around";
  torch::nn::Sequential model(torch::nn::Linear(20, 50), torch::nn::Tanh(), torch::nn::Linear(50, 3));
  {
    const c10::AutoGradMode no_gradient(false);
    for (Tensor& p : model->parameters())
      p.copy_(at::arange(p.numel(), at::kFloat).sin().mul_(0.3).view_as(p));
  }
  model->to(place);
  std::unique_ptr<torch::optim::AdamW> inner;
  std::unique_ptr<Optimizer> optimizer;
  if (around) {
    inner = std::make_unique<torch::optim::AdamW>(model->parameters(), torch::optim::AdamWOptions(0.01));
    optimizer = std::make_unique<Optimizer>(*model, *inner, Options{.wire = Wire::bf16}, world);
  } else {
    Options options{.scheme = scheme, .clip = 1, .skip_not_finite = true};
    if (scheme == "a2cid2") options.scheme = {scheme, {{"eta", 0.5}}};  // alone it would have none
    optimizer = std::make_unique<Optimizer>(*model, AdamW{.lr = 0.01}, options, world);
  }
  std::vector<Tensor> after;
  const Tensor x = (at::arange(64 * 20, at::kFloat).reshape({64, 20}) * (me + 1)).sin().to(place);
  for (int t = 0; t < 50; ++t) {
    optimizer->zero_grad();
    const Tensor y = x.slice(1, t % 17, t % 17 + 3);
    (model->forward(x) - y).square().mean().backward();
    if (t == 20 && !around) model->parameters()[0].mutable_grad().fill_(INFINITY);  // skipped
    optimizer->step();
    if (t == 25) {
      const OptimizerState state = optimizer->state();
      OptimizerState copy{state.metadata, {}};
      for (const auto& [name, tensor] : state.tensors) copy.tensors.emplace(name, tensor.clone());
      optimizer->step();
      optimizer->set_state(copy);
    }
  }
  if (!around) {
    EXPECT_EQ(optimizer->statistics().skipped, 1U);
  }
  after.push_back(at::full({1}, optimizer->consensus_distance(), at::kFloat));
  {
    const Consensus average(*optimizer);
    for (const Tensor& p : model->parameters()) after.push_back(p.detach().cpu().clone());
  }
  for (const Tensor& p : model->parameters()) after.push_back(p.detach().cpu().clone());
  return after;
}

// A scheme in pairs has only one worker here, since several do not repeat their bits.
std::vector<std::vector<Tensor>> fifty_steps_of_all(at::Device place, const std::string& scheme,
                                                    int workers = 2) {
  std::vector<std::vector<Tensor>> ends(
      scheme != "around" && averages_in_pairs({.scheme = scheme}) ? 1 : workers);
  flock(static_cast<int>(ends.size()), [&](int i, World& world) {
    ends[static_cast<std::size_t>(i)] = fifty_steps(i, world, place, scheme);
  });
  return ends;
}

// With "around", and without those whose workers may not skip a step on their own.
std::vector<std::string> schemes_on_gpus() {
  std::vector<std::string> names{"around"};
  for (const SchemeInfo* const info : schemes()) {
    if (info->traits.on_gpu && !info->traits.sums_gradients) names.emplace_back(info->name);
  }
  return names;
}

TEST(OnAGpu, FiftyStepsAreThoseOfTheProcessor) {
  if (const std::string why = find_cuda(); !why.empty()) GTEST_SKIP() << why;
  for (const std::string& scheme : schemes_on_gpus()) {
    SCOPED_TRACE(scheme);
    const int workers = scheme == "all-reduce" ? 1 : 2;  // gradient_average.h: no threads that share a GPU
    const auto there = fifty_steps_of_all(at::Device(at::kCUDA, 0), scheme, workers);
    const auto here = fifty_steps_of_all(at::kCPU, scheme, workers);
    for (std::size_t i = 0; i < here.size(); ++i) {
      for (std::size_t k = 0; k < here[i].size(); ++k)
        EXPECT_TRUE(at::allclose(there[i][k], here[i][k], 1e-3, 1e-3)) << "worker " << i << ", tensor " << k;
    }
  }
}

// The same on the CPU, so that this code runs without a GPU too. Workers agree on the average.
TEST(OnAGpu, FiftyStepsOnTheProcessorAreTheSameTwice) {
  for (const std::string& scheme : schemes_on_gpus()) {
    SCOPED_TRACE(scheme);
    const auto once = fifty_steps_of_all(at::kCPU, scheme), again = fifty_steps_of_all(at::kCPU, scheme);
    for (std::size_t k = 0; k < once[0].size(); ++k) EXPECT_TRUE(at::equal(once[0][k], again[0][k]));
    if (once.size() == 1) continue;
    for (std::size_t k = 1; k < 5; ++k) EXPECT_TRUE(at::allclose(once[0][k], once[1][k], 1e-5, 1e-6));
  }
}

TEST(OnAGpu, RefusesSchemesThatNeedTheCpu) {
  if (const std::string why = find_cuda(); !why.empty()) GTEST_SKIP() << why;
  World world = World::alone();
  const auto make = [&](const std::string& scheme) {
    const Tensor p = at::zeros({4}, at::TensorOptions(at::kCUDA)).set_requires_grad(true);
    return refusal<UsageError>([&] { Optimizer(std::vector<Tensor>{p}, SGD{}, {.scheme = scheme}, world); });
  };
  EXPECT_EQ(make("choco"), "parameter 0 of group 0 is on cuda:0: " + needs_cpu({.scheme = "choco"}));
}

}  // namespace
}  // namespace starling
