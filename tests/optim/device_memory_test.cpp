// Memory beside the blocks: what a pass over a GPU needs, copies of blocks on the host, and vectors
// of a scheme. Steps without it, and steps in which a call of the driver fails.
#include <array>
#include <optional>
#include <set>

#include <gmock/gmock.h>

#include "starling/optim/optimizer.h"
#include "starling/optim/schemes/host_blocks.h"
#include "starling/optim/schemes/vectors.h"
#include "tests/optim/other_device.h"
#include "tests/optim/scarce_memory.h"

namespace starling {
namespace {

constexpr std::int64_t kLength = 2000;

// How a worker mixes what has arrived.
struct WayToMix {
  std::string name{};
  int one_in = 1;
  bool in_two = false;  // in two passes, which share the upload
  Rule rule = SGD{.lr = 0.1, .momentum = 0.9};
  std::vector<std::vector<std::int64_t>> shapes{{kLength}};  // of kLength values together
};

const WayToMix kInTwo{.name = "in_two", .in_two = true};
const WayToMix kWays[] = {
    {.name = "all_values"},
    {.name = "few_values", .one_in = 3},
    kInTwo,
    // Two kinds of steps in one pass, and a momentum that moves beside it. (torch multiplies larger
    // matrices by another library.)
    {.name = "a_matrix", .rule = Muon{.lr = 0.02}, .shapes = {{8, 60}, {kLength - 480}}}};

class OneBlockOnADevice : public OtherDevice {
 protected:
  // A worker with one block. It mixes what a neighbour and itself have sent in the step before.
  class Sender {
   public:
    Sender(OneBlockOnADevice& test, const WayToMix& way, const std::shared_ptr<CudaDevice>& gpu)
        : way_(way), parameters_(some_parameters(way.shapes, 0, at::kFloat, at::kCPU)) {
      test.add_blocks(blocks_, {torch::optim::OptimizerParamGroup(parameters_, rule_options(way.rule))},
                      {.rule = way.rule}, /*undivided=*/false, gpu);
      EXPECT_EQ(blocks_.size(), 1u);
    }

    void step(int t) {
      std::int64_t at = 0;
      for (Tensor& p : parameters_) {
        const Tensor& all = gradients_.at(static_cast<std::size_t>(t));
        p.mutable_grad() = all.narrow(0, at, p.numel()).view(p.sizes());
        at += p.numel();
      }
      Block& block = blocks_.front();
      const std::vector<float> theirs(static_cast<std::size_t>(kLength), 0.25F * static_cast<float>(t));
      std::vector<Arrival> arrived;
      if (t > 0) {
        arrived.push_back({.weight = 0.25F,
                           .theirs = sent_block(theirs, mask(t - 1)),
                           .mine = sent_block(sent(t - 1), mask(t - 1))});
      }
      if (way_.in_two) {
        arrived = uploaded(block, arrived);
        if (mixed_ < t) mix(block, arrived, {});
        mixed_ = t;
      }
      update(block, way_.rule, arrived, Outgoing({sent(t).data(), Wire::fp32}, mask(t)));
    }
    // To the host and back.
    void copy() {
      const c10::AutoGradMode no_gradient(false);
      const Tensor values = at::empty({kLength});
      read_on_host(blocks_.front(), values);
      set_from_host(blocks_.front(), values);
    }

    After after() const { return bytes_after(parameters_, blocks_); }
    // The same for all segments.
    std::int64_t steps() const {
      const std::vector<Segment>& all = blocks_.front().segments;
      for (const Segment& s : all) EXPECT_EQ(s.steps, all.front().steps);
      return all.front().steps;
    }

   private:
    static SentBlock sent_block(const std::vector<float>& values, Mask mask) {
      const std::span all(values.data(), mask.chosen_of(values.size()));
      return SentBlock({nullptr, std::as_bytes(all)}, Wire::fp32, mask);
    }
    Mask mask(int t) const {
      return {static_cast<std::uint32_t>(way_.one_in), static_cast<std::uint32_t>(t % way_.one_in)};
    }
    std::vector<float>& sent(int t) { return sent_.at(static_cast<std::size_t>(t % 2)); }

    const WayToMix way_;
    std::vector<Tensor> parameters_;
    std::vector<Block> blocks_;
    int mixed_ = -1;  // the last step with its first pass
    std::array<std::vector<float>, 2> sent_{std::vector<float>(kLength), std::vector<float>(kLength)};
    const Tensor gradient_ = at::arange(kLength, at::kFloat).sin();
    const std::vector<Tensor> gradients_{gradient_, gradient_ * 0.5, gradient_.cos(), gradient_ * 2};
  };
};

using ADeviceWithoutMemory = OneBlockOnADevice;

// No memory for any one tensor: nothing is left in the GPU's streams. The same step, made again,
// has the bits of the CPU.
TEST_F(ADeviceWithoutMemory, MakesAPassOrNone) {
  constexpr int kTurns = 4;
  const std::shared_ptr<CudaDevice> gpu = device();
  ScarceMemory memory;
  for (const WayToMix& way : kWays) {
    std::vector<After> here;
    Sender on_cpu(*this, way, nullptr);
    for (int t = 0; t < kTurns; ++t) {
      on_cpu.step(t);
      here.push_back(on_cpu.after());
    }
    const std::size_t earlier = unfinished();
    int tensors = 0;
    for (bool failed = true; failed; ++tensors) {
      SCOPED_TRACE(way.name + ", after " + std::to_string(tensors) + " tensors");
      failed = false;
      Sender there(*this, way, gpu);
      memory.fail_after(tensors);
      for (int t = 0; t < kTurns; ++t) {
        try {
          there.step(t);
        } catch (const c10::OutOfMemoryError&) {
          EXPECT_FALSE(failed);
          failed = true;
          EXPECT_EQ(there.steps(), t);
          EXPECT_TRUE(way.in_two || unfinished() == earlier);  // uploaded() is for more passes
          there.step(t);
        }
        EXPECT_TRUE(there.after() == here.at(static_cast<std::size_t>(t))) << "step " << t;
      }
      memory.fail_after(-1);
      memory.free_kept();
    }
    EXPECT_EQ(unfinished(), earlier);
    // On the host and the device: the table, the counters, what is sent and what has arrived.
    EXPECT_GT(tensors, 8);
  }
}

// A worker that gives up after that frees memory to which nothing is uploaded any more.
TEST_F(ADeviceWithoutMemory, IsLeftWithNoUpload) {
  const std::shared_ptr<CudaDevice> gpu = device();
  ScarceMemory memory;
  const std::size_t earlier = unfinished();
  for (int tensors = 0, failed = 1; failed == 1; ++tensors) {
    failed = 0;
    {
      Sender there(*this, kInTwo, gpu);
      there.step(0);
      memory.fail_after(tensors);
      try {
        there.step(1);
      } catch (const c10::OutOfMemoryError&) {
        failed = 1;
      }
      memory.fail_after(-1);
    }
    EXPECT_EQ(unfinished(), earlier) << "after " << tensors << " tensors";
  }
}

using ADriverThatFails = OneBlockOnADevice;

// Each call fails in turn: those that open the GPU, those of two steps and of copies, and those of
// the end. The first failure is what all later steps say. They begin nothing.
TEST_F(ADriverThatFails, LeavesNothingHalfDone) {
  constexpr int kTurns = 2;
  const ScarceMemory memory;  // for later than a tensor's end
  std::set<std::string> failed;
  for (const WayToMix& way : kWays) {
    Sender here(*this, way, nullptr);
    for (int t = 0; t < kTurns; ++t) here.step(t);
    for (const bool for_good : {false, true}) {
      std::string call = "none yet";
      for (int calls = 0; !call.empty(); ++calls) {
        SCOPED_TRACE(way.name + (for_good ? ", for good" : ", once") + " after " + std::to_string(calls) +
                     " calls");
        const std::size_t earlier = held(), not_done = unfinished();
        {
          std::shared_ptr<CudaDevice> gpu;
          std::optional<Sender> there;
          fail_after(calls, for_good);
          const std::string why = refusal([&] {
            gpu = device();
            gpu->set_rank(7);
            there.emplace(*this, way, gpu);
            for (int t = 0; t < kTurns; ++t) there->step(t);
            there->copy();
          });
          if (why == "accepted") {
            EXPECT_EQ(there->steps(), kTurns);
            EXPECT_TRUE(there->after() == here.after());
          } else {
            EXPECT_THAT(why, testing::MatchesRegex(std::string(gpu ? "rank 7: " : "") + kCallFailed))
                << failed_call();
          }
          EXPECT_LE(unfinished(), not_done);
          if (why != "accepted" && there) {
            const std::int64_t steps = there->steps();
            EXPECT_EQ(refusal([&] { there->step(0); }), why);
            EXPECT_EQ(refusal([&] { there->copy(); }), why);
            EXPECT_EQ(there->steps(), steps);
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
  }
  for (const char* const call :
       {"cuInit", "cuModuleLoadData", "cuStreamCreate", "cuEventCreate", "cuCtxPushCurrent_v2",
        "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuLaunchKernel", "cuEventRecord",
        "cuStreamWaitEvent", "cuEventSynchronize", "cuThreadExchangeStreamCaptureMode", "cuEventDestroy_v2",
        "cuStreamDestroy_v2"})
    EXPECT_TRUE(failed.contains(call)) << call;
}

using CopiesOnTheHost = OtherDevice;

// They are behind the updates that the GPU has not made yet. A block of many segments waits once.
TEST_F(CopiesOnTheHost, AreReadAndWrittenWithOneWait) {
  const c10::AutoGradMode no_gradient(false);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(c10::toString(type));
    const Case the{.rule = SGD{.lr = 0.1}, .type = type};
    std::vector<Tensor> all, all_here;
    std::vector<Block> there = some_blocks(the, 0, Where::other, all);
    std::vector<Block> here = some_blocks(the, 0, Where::here, all_here);
    HostBlocks copies;
    copies.attach(there);
    for (std::size_t b = 0; b < there.size(); ++b) {
      SCOPED_TRACE(b);
      for (std::vector<Block>* const blocks : {&there, &here}) {
        for (Segment& s : (*blocks)[b].segments) s.parameter.mutable_grad() = at::ones_like(s.parameter);
        update((*blocks)[b], the.rule, {}, {});
      }
      const std::size_t before = waits();
      Block& copy = copies.read(there[b]);
      EXPECT_EQ(waits(), before + 1);
      std::vector<Tensor> tripled;
      for (std::size_t k = 0; k < copy.segments.size(); ++k) {
        const Segment& s = here[b].segments[k];
        const Tensor x = s.master.defined() ? s.master : stretch(s.parameter, s.begin, s.length);
        EXPECT_TRUE(at::equal(copy.segments[k].parameter, x)) << "segment " << k;
        copy.segments[k].parameter.mul_(3);
        tripled.push_back(x * 3);
      }
      const std::uint32_t version = there[b].segments[0].version();
      copies.write(there[b]);
      EXPECT_EQ(waits(), before + 2);
      EXPECT_NE(there[b].segments[0].version(), version);
      for (std::size_t k = 0; k < tripled.size(); ++k) {
        const Segment& s = there[b].segments[k];
        EXPECT_TRUE(at::equal(stretch(s.parameter, s.begin, s.length), tripled[k].to(type)))
            << "segment " << k;
        EXPECT_TRUE(!s.master.defined() || at::equal(s.master, tripled[k])) << "segment " << k;
      }
    }
  }
}

TEST(VectorsOfAScheme, TakeZerosOnlyWhenTheyAreAdded) {
  const std::vector<Tensor> parameters = some_parameters({{kLength}}, 0, at::kFloat, at::kCPU);
  std::vector<Block> blocks;
  append_blocks(blocks, {torch::optim::OptimizerParamGroup(parameters)}, 0, 1);
  constexpr std::size_t kBlock = kLength * sizeof(float);
  const ScarceMemory memory;
  const std::size_t before = memory.taken();
  Vectors v;
  v.attach(blocks);
  EXPECT_EQ(memory.taken() - before, kBlock);
  EXPECT_EQ(v.plus(blocks[0]).mine.bytes().size(), kBlock);
  EXPECT_EQ(memory.taken() - before, 2 * kBlock);
  v.plus(blocks[0]);
  EXPECT_EQ(memory.taken() - before, 2 * kBlock);
}

}  // namespace
}  // namespace starling
