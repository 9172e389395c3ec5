#include "starling/plan/choose.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>

namespace starling {
namespace {

Candidate candidate(const std::string& schedule, Wire wire, double step) {
  Candidate c{schedule, wire, {}};
  c.outcome.step = step;
  return c;
}

TEST(Recommended, IsTheWidestWireAndThenTheFirstOfWhatIsAsGood) {
  const auto name = [](const std::vector<Candidate>& all) { return recommended(all).schedule; };
  EXPECT_EQ(
      name({candidate("a", Wire::fp32, 2), candidate("b", Wire::fp32, 1), candidate("c", Wire::fp32, 1.01)}),
      "b");
  EXPECT_EQ(name({candidate("a", Wire::fp32, 1.019), candidate("b", Wire::fp32, 1)}), "a");
  EXPECT_EQ(name({candidate("a", Wire::fp32, 1.021), candidate("b", Wire::fp32, 1)}), "b");
  EXPECT_EQ(
      name({candidate("a", Wire::int8, 1), candidate("b", Wire::bf16, 1.01), candidate("c", Wire::bf16, 1)}),
      "b");
}

TEST(IsPlanned, LeavesOutCompleteInCodes) {
  for (const Wire wire : {Wire::fp32, Wire::int8}) EXPECT_TRUE(is_planned("base-2", wire));
  EXPECT_TRUE(is_planned("complete", Wire::fp32));
  EXPECT_FALSE(is_planned("complete", Wire::int8));
}

}  // namespace
}  // namespace starling
