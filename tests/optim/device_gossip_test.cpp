// Gossip with blocks on a GPU has the bits of the CPU.
#include <set>

#include <gmock/gmock.h>

#include "starling/optim/clipping.h"
#include "starling/optim/cuda/held_on_device.h"
#include "tests/optim/every_scheme.h"
#include "tests/optim/other_device.h"
#include "tests/optim/scarce_memory.h"

namespace starling {
namespace {

class GossipOnAnotherDevice : public OtherDevice {
 protected:
  // Workers of a virtual cluster have different speeds. In the middle, gossip begins anew from the
  // parameters.
  After gossip(const Case& the, int me, World& world, VirtualTime& time, Where where) {
    std::vector<Tensor> all;
    std::vector<Block> blocks = some_blocks(the, me, where, all);
    const Options options{.topology = the.topology, .scheme = {the.scheme, {{"rate", 2}}}, .wire = the.wire};
    Clipping clipping;
    LocalStep local(blocks, [&](int) -> const Rule& { return the.rule; }, clipping);
    const std::unique_ptr<Scheme> made = scheme_of(options).make({blocks, local, world, options});
    Scheme& scheme = *made;
    const Schedule schedule = schedule_of(options, kWorkers, 1);
    scheme.attach(
        {.schedule = schedule, .of_members = schedule, .members = {0, 1, 2, 3}, .make_transport = [&] {
           return world.make_transport(world, "device");
         }});
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

  void expect_the_same_gossip(const Case& the, Where where) {
    SCOPED_TRACE(the.name);
    std::vector<std::vector<After>> both;
    for (const Where one : {Where::here, where}) {
      std::vector<After>& ends = both.emplace_back(kWorkers);
      virtual_flock(
          kWorkers,
          [&](int i, World& world, VirtualTime& time) {
            ends[static_cast<std::size_t>(i)] = gossip(the, i, world, time, one);
          },
          1e8);
    }
    EXPECT_TRUE(both[0] == both[1]);
    EXPECT_FALSE(both[0][0] == both[0][1]);
  }
};

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
            "CUDA: GPU 0: the GPU's work: error 719, unspecified launch failure");
  drain();
}

// Each call of the driver fails in turn, in an average or in a renewal, once or for good.
// wait_for_torch() says so at the latest, and then always.
TEST_F(GossipOnAnotherDevice, ACallThatFailsLeavesNothingHalfDone) {
  constexpr std::int64_t n = 1000;
  const Tensor p = at::ones({n}), taken = at::zeros({n}), x = at::arange(n, at::kFloat).sin();
  const std::vector<float> theirs(n, 0.5F);
  const SentBlock q({nullptr, std::as_bytes(std::span(theirs))}, Wire::fp32);
  std::vector<Block> blocks;
  append_blocks(blocks, {torch::optim::OptimizerParamGroup(std::vector<Tensor>{p})}, 0, 1);
  const ScarceMemory memory;  // for later than a tensor's end
  std::set<std::string> failed;
  for (const bool for_good : {false, true}) {
    std::string call = "none yet";
    for (int calls = 0; !call.empty(); ++calls) {
      SCOPED_TRACE((for_good ? "for good after " : "once after ") + std::to_string(calls) + " calls");
      const std::size_t earlier = held(), not_done = unfinished();
      {
        std::shared_ptr<CudaDevice> gpu;
        std::shared_ptr<GossipStream> stream;
        std::unique_ptr<HeldOnDevice> block;
        std::vector<float> sent(n);
        fail_after(calls, for_good);
        const std::string why = refusal([&] {
          gpu = device();
          gpu->set_rank(7);
          stream = gpu->gossip();
          block = stream->make_held_block(x.clone(), {.x_tilde = true});
          for (int t = 0; t < 2; ++t) {
            block->send(0.1, sent.data(), 1);
            block->average(0.1, 0.5F, 0.5F, q, q);
            stream->wait_for_torch();
            block->renew(blocks[0], taken, block->now(), 1);
            stream->let_torch_follow();
          }
          stream->wait_for_torch();
        });
        EXPECT_LE(unfinished(), not_done);
        if (why != "accepted") {
          EXPECT_THAT(why, testing::MatchesRegex(std::string(gpu ? "rank 7: " : "") + kCallFailed));
        }
        if (why != "accepted" && block) {
          EXPECT_FALSE(block->send(0.1, sent.data(), 1));
          EXPECT_EQ(refusal([&] { stream->wait_for_torch(); }), why);
          EXPECT_LE(unfinished(), not_done);
        }
      }
      call = failed_call();
      failed.insert(call);
      fail_after(-1);
      EXPECT_TRUE(for_good || held() == earlier) << call;
      memory.free_kept();
    }
  }
  for (const char* const call : {"cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuLaunchKernel",
                                 "cuEventRecord", "cuStreamWaitEvent", "cuEventSynchronize"})
    EXPECT_TRUE(failed.contains(call)) << call;
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

}  // namespace
}  // namespace starling
