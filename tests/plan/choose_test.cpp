#include "starling/plan/choose.h"

#include <string>
#include <tuple>
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

TEST(Candidates, AreTheSchedulesOverEveryWireButCompleteInCodes) {
  const auto all = candidates(
      {"base-2", "complete"}, {Wire::fp32, Wire::int8}, [](const std::string& schedule, Wire wire) {
        Forecast outcome;
        outcome.step = (schedule == "complete" ? 10 : 20) + (wire == Wire::int8 ? 1 : 2);
        return outcome;
      });
  std::vector<std::tuple<std::string, Wire, double>> rows;
  for (const Candidate& c : all) rows.emplace_back(c.schedule, c.wire, c.outcome.step);
  EXPECT_THAT(rows,
              testing::ElementsAre(std::tuple("base-2", Wire::fp32, 22), std::tuple("base-2", Wire::int8, 21),
                                   std::tuple("complete", Wire::fp32, 12)));
}

}  // namespace
}  // namespace starling
