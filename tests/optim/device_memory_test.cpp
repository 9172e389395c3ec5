// Memory beside the blocks: their copies on the host, and the vectors of a scheme.
#include "starling/optim/schemes/host_blocks.h"
#include "starling/optim/schemes/vectors.h"
#include "tests/optim/other_device.h"
#include "tests/optim/scarce_memory.h"

namespace starling {
namespace {

constexpr std::int64_t kLength = 2000;

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
