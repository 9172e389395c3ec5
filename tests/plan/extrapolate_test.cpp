#include "starling/plan/extrapolate.h"

#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "starling/plan/all_reduce.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using testing::ElementsAre;

// Two workers on host a, one on b; the link from a to b is slow.
Profile measured() {
  Profile profile;
  profile.hosts = {{.name = "a", .workers = {0, 1}, .send = 1e9, .receive = 1e9},
                   {.name = "b", .workers = {2}, .send = 2e9, .receive = 2e9}};
  profile.links = {{.from = 0, .to = 1, .latency = 0.1, .rate = 1e6}};
  profile.all_reduce = {{.bytes = 1e6, .seconds = 5}};
  return profile;
}

TEST(Extrapolate, HostsAndTheirLinksAreRepeated) {
  const Network network = network_of(measured(), 7);
  EXPECT_THAT(network.host_of, ElementsAre(0, 0, 1, 1, 2, 2, 3));
  std::vector<std::string> names;
  std::vector<double> rates;
  for (const Host& host : network.hosts) names.push_back(host.name), rates.push_back(host.send);
  EXPECT_THAT(names, ElementsAre("a", "b", "a (2)", "b (2)"));
  EXPECT_THAT(rates, ElementsAre(1e9, 2e9, 1e9, 2e9));
  std::vector<std::pair<int, int>> slow;
  for (const HostLink& link : network.links) {
    slow.emplace_back(link.from, link.to);
    EXPECT_EQ(link.rate, 1e6);
  }
  EXPECT_THAT(slow, testing::UnorderedElementsAre(std::pair(0, 1), std::pair(0, 3), std::pair(2, 1),
                                                  std::pair(2, 3)));
}

TEST(Extrapolate, AsManyAsWereMeasuredAreThose) {
  const Network network = network_of(measured(), 3);
  EXPECT_THAT(network.host_of, ElementsAre(0, 0, 1));
  EXPECT_EQ(all_reduces_of(measured(), network_of(measured(), 3))[0].seconds, 5);
}

TEST(Extrapolate, FewerMayNeedNoNetwork) {
  const Network network = network_of(measured(), 2);
  EXPECT_THAT(network.host_of, ElementsAre(0, 0));
  EXPECT_TRUE(network.links.empty());
}

TEST(Extrapolate, AllReduceIsOffTheFormulaByAsMuch) {
  const double three = all_reduce_seconds(network_of(measured(), 3), 1e6),
               seven = all_reduce_seconds(network_of(measured(), 7), 1e6);
  EXPECT_NEAR(all_reduces_of(measured(), network_of(measured(), 7))[0].seconds, 5 * seven / three, 1e-12);
}

TEST(Extrapolate, OfOneHostNothingIsKnownOfANetwork) {
  Profile one = measured();
  one.hosts.pop_back();
  one.links.clear();
  EXPECT_EQ(network_of(one, 1).host_of.size(), 1U);
  EXPECT_EQ(refusal<UsageError>([&] { network_of(one, 3); }),
            "3 workers: 2 were measured on one host, so the network between hosts is unknown: measure "
            "on two or more hosts");
}

}  // namespace
}  // namespace starling
