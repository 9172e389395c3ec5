// Memory beside the blocks: what a pass over a GPU needs, copies of blocks on the host, and vectors
// of a scheme.
#include <array>

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
};

class ADeviceWithoutMemory : public OtherDevice {
 protected:
  // A worker with one block. It mixes what a neighbour and itself have sent in the step before.
  class Sender {
   public:
    Sender(ADeviceWithoutMemory& test, const WayToMix& way, const std::shared_ptr<CudaDevice>& gpu)
        : way_(way), parameters_(some_parameters({{kLength}}, 0, at::kFloat, at::kCPU)) {
      test.add_blocks(blocks_, {torch::optim::OptimizerParamGroup(parameters_)}, {.rule = rule_},
                      /*undivided=*/false, gpu);
    }

    void step(int t) {
      parameters_[0].mutable_grad() = gradients_.at(static_cast<std::size_t>(t));
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
      update(block, rule_, arrived, Outgoing({sent(t).data(), Wire::fp32}, mask(t)));
    }

    After after() const { return bytes_after(parameters_, blocks_); }
    std::int64_t steps() const { return blocks_.front().segments.front().steps; }

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
    const Rule rule_ = SGD{.lr = 0.1, .momentum = 0.9};
    std::vector<Tensor> parameters_;
    std::vector<Block> blocks_;
    int mixed_ = -1;  // the last step with its first pass
    std::array<std::vector<float>, 2> sent_{std::vector<float>(kLength), std::vector<float>(kLength)};
    const std::vector<Tensor> gradients_{at::ones({kLength}), at::ones({kLength}) * 0.5,
                                         at::ones({kLength}) * -1, at::ones({kLength}) * 2};
  };
};

// No memory for any one tensor: nothing is left in the GPU's streams. The same step, made again,
// has the bits of the CPU.
TEST_F(ADeviceWithoutMemory, MakesAPassOrNone) {
  constexpr int kTurns = 4;
  const std::shared_ptr<CudaDevice> gpu = device();
  ScarceMemory memory;
  for (const WayToMix& way : {WayToMix{.name = "all_values"}, WayToMix{.name = "few_values", .one_in = 3},
                              WayToMix{.name = "in_two", .in_two = true}}) {
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
      Sender there(*this, {.name = "in_two", .in_two = true}, gpu);
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
