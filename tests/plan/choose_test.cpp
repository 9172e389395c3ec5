#include "starling/plan/choose.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

#include "starling/core/error.h"

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

// Four workers on four hosts, a model of 8 MB in two blocks, 10 ms of compute.
Profile slow_network(double rate) {
  Profile profile;
  for (int i = 0; i < 4; ++i) {
    profile.hosts.push_back(
        {.name = std::string(1, static_cast<char>('a' + i)), .workers = {i}, .send = rate, .receive = rate});
    profile.compute.push_back(
        {.data_wait = {0}, .forward = {0.004}, .backward = {{0.002}, {0.002}}, .update = {{0.001}, {0.001}}});
  }
  profile.blocks = {4e6, 4e6};
  return profile;
}

TEST(Candidates, AreTheSchedulesOverEveryWireButCompleteInCodes) {
  const Profile profile = slow_network(1e8);
  const auto all = candidates(network_of(profile), 1, profile, {"base-2", "ring", "complete"},
                              {Wire::fp32, Wire::int8}, {}, Mixing::ahead, {});
  std::set<std::string> of_fp32, of_int8;
  for (const Candidate& c : all) (c.wire == Wire::fp32 ? of_fp32 : of_int8).insert(c.schedule);
  EXPECT_EQ(of_fp32, (std::set<std::string>{"base-2", "ring", "complete"}));
  EXPECT_EQ(of_int8, (std::set<std::string>{"base-2", "ring"}));
  EXPECT_THROW(candidates(network_of(profile), 1, profile, {"no-such"}, {Wire::fp32}, {}, Mixing::ahead, {}),
               UsageError);
}

// A pair's model on the link, a quarter of it in int8, and a tenth if one value in ten is sent.
TEST(Candidates, SendWhatTheSchemeSends) {
  const Profile profile = slow_network(1e8);
  const auto step = [&](const Sent& sent, Mixing mixing = Mixing::ahead) {
    return candidates(network_of(profile), 1, profile, {"base-2"}, {sent.wire}, sent, mixing, {})
        .front()
        .outcome.step;
  };
  EXPECT_NEAR(step({}), 0.08, 0.001);
  EXPECT_NEAR(step({.wire = Wire::int8}), 0.02, 0.001);
  EXPECT_NEAR(step({.one_in = 10}), 0.010, 0.001);
  EXPECT_NEAR(step({.one_in = 4}), 0.02, 0.001);
  EXPECT_NEAR(step({.one_in = 4, .indices = true}), 0.04, 0.001);
  EXPECT_NEAR(step({.one_in = 1, .indices = true}), 0.08, 0.001);
  EXPECT_NEAR(step({.vectors = 2}), 0.16, 0.001);
  EXPECT_NEAR(step({.vectors = 2, .every = 4}), 0.04, 0.001);
  EXPECT_NEAR(step({}, Mixing::inside), 0.08 + 0.009, 0.001);
  EXPECT_NEAR(step({.every = 8}, Mixing::inside), 0.01 + 0.009, 0.001);
}

}  // namespace
}  // namespace starling
