#include "starling/probe/evaluate.h"

#include <limits>

#include <gmock/gmock.h>

#include "starling/core/text.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// n hosts a, b, .. of one worker each, with equal rates between them.
Measurements even(int n, double rate = 1e8) {
  Measurements all;
  for (int h = 0; h < n; ++h) all.hosts.push_back({std::string(1, static_cast<char>('a' + h)), {h}});
  for (int a = 0; a < n; ++a) {
    for (int b = 0; b < n; ++b) {
      if (a == b) continue;
      all.latency[{a, b}] = 5e-5;
      all.one_flow[{a, b}] = all.all_flows[{a, b}] = rate;
    }
  }
  return all;
}

void set_rate(Measurements& all, int from, int to, double rate) {
  all.one_flow[{from, to}] = all.all_flows[{from, to}] = rate;
}

std::vector<std::string> remarks_of(const Measurements& all) { return remarks(all, network_profile(all)); }

TEST(Evaluate, WhatAllHaveMeasuredIsWhatWasPlanned) {
  const std::vector<FlowSet> planned{{{0, 1}}, {{0, 1}, {1, 0}}};
  const Measured all{{{{0, 1}, 5e-5}}, {{{0, 1}, 1e8}, {{1, 0}, 0}}};
  EXPECT_EQ(measured_by_all(planned, {to_text({all[0], {}}), to_text({{}, all[1]})}), all);
  const auto refused = [&](const std::string& second) {
    return refusal<Error>([&] { measured_by_all(planned, {"0 0 1 5e-5\n1 0 1 1e8\n", second}); });
  };
  EXPECT_EQ(refused(""), "probe: measurement 1 has 1 flows of 2");
  for (const char* line : {"2 1 0 1", "1 0 7 1", "-1 1 0 1", "1 1 0 -1", "1 1 0 nan", "1 1 0 inf", "1 1 0 ",
                           "1 1  ", "0 0 1 1", "one 1 0 1"})
    EXPECT_EQ(refused(line),
              "probe: worker 1 says \"" + std::string(line) + "\", which is none of its measurements");
}

TEST(Evaluate, WorkersWithTheSameCardShareAHost) {
  const std::vector<Host> hosts =
      hosts_by_cards({host_card("one", "node", "10.0.0.1"), host_card("two", "node", "10.0.0.2"),
                      host_card("one", "node", "10.0.0.1"), host_card("three", "other\n", "10.0.0.3")});
  ASSERT_EQ(hosts.size(), 3U);
  EXPECT_EQ(hosts[0].name, "node (10.0.0.1)");
  EXPECT_EQ(hosts[0].workers, (std::vector{0, 2}));
  EXPECT_EQ(hosts[1].name, "node (10.0.0.2)");
  EXPECT_EQ(hosts[2].name, "other\\u000A");
  for (const std::string card : {"", "one", "one\n", "one\nnode"}) {
    EXPECT_EQ(refusal([&] { hosts_by_cards({host_card("one", "node", "10.0.0.1"), card}); }),
              "probe: worker 1 says " + short_of(card) + ", which names no host");
  }
}

TEST(Evaluate, AnEvenNetworkNeedsNoRemark) {
  const Measurements all = even(4);
  const Profile profile = network_profile(all);
  EXPECT_EQ(profile.workers(), 4);
  EXPECT_EQ(profile.latency, 5e-5);
  for (const Host& host : profile.hosts) {
    EXPECT_EQ(host.send, 1e8);
    EXPECT_EQ(host.receive, 1e8);
  }
  EXPECT_THAT(profile.links, IsEmpty());
  EXPECT_THAT(remarks(all, profile), IsEmpty());
  EXPECT_EQ(print_profile(parse_profile(print_profile(profile), "p.json")), print_profile(profile));
}

TEST(Evaluate, ASlowLinkIsAnExceptionAndAsymmetric) {
  Measurements all = even(4);
  set_rate(all, 1, 2, 3e7);
  const Profile profile = network_profile(all);
  ASSERT_EQ(profile.links.size(), 1u);
  EXPECT_EQ(profile.links[0].from, 1);
  EXPECT_EQ(profile.links[0].to, 2);
  EXPECT_EQ(profile.links[0].rate, 3e7);
  EXPECT_EQ(profile.hosts[1].send, 1e8);  // to others
  EXPECT_THAT(bandwidths(all, profile),
              ElementsAre(ElementsAre(0, 1e8, 1e8, 1e8), ElementsAre(1e8, 0, 3e7, 1e8),
                          ElementsAre(1e8, 1e8, 0, 1e8), ElementsAre(1e8, 1e8, 1e8, 0)));
  all.all_flows.erase({0, 3});  // not measured: the rate that both ends reach
  EXPECT_EQ(bandwidths(all, profile)[0][3], 1e8);
  EXPECT_THAT(remarks(all, profile), ElementsAre("slow link: b -> c reaches 30 MB/s, its ends reach 100 MB/s",
                                                 "asymmetric link: b -> c carries 30 MB/s, c -> b 100 MB/s"));
}

TEST(Evaluate, ASlowHostIsNamedOnceAndNotItsLinks) {
  Measurements all = even(4);
  for (const int other : {0, 1, 3}) set_rate(all, 2, other, 3e7);
  const Profile profile = network_profile(all);
  EXPECT_EQ(profile.hosts[2].send, 3e7);
  EXPECT_EQ(profile.hosts[2].receive, 1e8);
  EXPECT_EQ(profile.hosts[0].receive, 1e8);  // from others
  EXPECT_THAT(profile.links, IsEmpty());
  EXPECT_THAT(remarks(all, profile), ElementsAre("slow host: c sends 30 MB/s, most hosts 100 MB/s",
                                                 "asymmetric host: c sends 30 MB/s and receives 100 MB/s"));
}

// With two hosts, a slow sender cannot be told from a slow receiver.
TEST(Evaluate, BetweenTwoHostsTheLinkIsNamed) {
  Measurements all = even(2);
  set_rate(all, 0, 1, 2.5e7);
  EXPECT_THAT(remarks_of(all), ElementsAre("asymmetric link: a -> b carries 25 MB/s, b -> a 100 MB/s"));
}

TEST(Evaluate, AFarLinkIsAnException) {
  Measurements all = even(4);
  all.latency[{0, 3}] = all.latency[{3, 0}] = 2e-3;
  const Profile profile = network_profile(all);
  ASSERT_EQ(profile.links.size(), 2u);
  EXPECT_EQ(profile.links[0].latency, 2e-3);
  EXPECT_EQ(profile.links[0].rate, 1e8);
  EXPECT_THAT(remarks(all, profile), ElementsAre("far link: a -> d takes 2 ms, most links 0.05 ms",
                                                 "far link: d -> a takes 2 ms, most links 0.05 ms"));
}

TEST(Evaluate, ExchangesReachAShareOfWhatTheirHostsCan) {
  Measurements all = even(3);
  set_rate(all, 0, 1, 2e7);
  // A ring of three, in both directions: each host has two flows out and two in, of 5e7; the slow
  // link has one of 2e7.
  MeasuredExchanges ring{2, {}};
  for (int i = 0; i < 3; ++i) {
    for (const int j : {(i + 1) % 3, (i + 2) % 3}) ring.flows.push_back({i, j, 2.7e7});
  }
  all.exchanges = {ring};
  const Profile profile = network_profile(all);
  ASSERT_EQ(profile.shapes.size(), 1u);
  EXPECT_EQ(profile.shapes[0].peers, 2);
  EXPECT_NEAR(profile.shapes[0].share, 6 * 2.7e7 / (5 * 5e7 + 2e7), 1e-12);
}

// An unused part goes to others: two flows go to a slow receiver of 2e7, and a third one gets the
// rest of its sender.
TEST(Evaluate, APartThatCannotBeUsedIsForOthers) {
  Measurements all = even(3);
  for (const int from : {0, 2}) set_rate(all, from, 1, 2e7);
  all.exchanges = {{2, {{0, 1, 5e6}, {2, 1, 5e6}, {0, 2, 4.5e7}}}};
  EXPECT_NEAR(network_profile(all).shapes.at(0).share, 5.5e7 / (1e7 + 1e7 + 9e7), 1e-12);
}

// Acknowledgements wait behind data, so the rate of a link alone counts too.
TEST(Evaluate, BothWaysAtOnceMayBeLess) {
  Measurements all = even(3);
  for (const int other : {0, 2}) {
    set_rate(all, 1, other, 2e7);
    all.all_flows[{other, 1}] = 3e7;
  }
  const Profile profile = network_profile(all);
  EXPECT_EQ(profile.hosts[1].send, 2e7);
  EXPECT_EQ(profile.hosts[1].receive, 1e8);
  EXPECT_THAT(profile.links, IsEmpty());
}

// Traffic inside a host does not use its interface.
TEST(Evaluate, FlowsInsideAHostDoNotCount) {
  Measurements all = even(2);
  all.hosts = {{"a", {0, 1}}, {"b", {2, 3}}};
  all.inside_rate = {4e9, 5e9, 6e9};
  all.inside_latency = {1e-5, 1e-5, 3e-5};
  all.exchanges = {{1, {{0, 2, 4e7}, {1, 3, 4e7}, {0, 1, 5e9}}}};
  const Profile profile = network_profile(all);
  EXPECT_EQ(profile.inside_rate, 5e9);
  EXPECT_EQ(profile.inside_latency, 1e-5);
  EXPECT_NEAR(profile.shapes.at(0).share, 0.8, 1e-12);
}

TEST(Evaluate, OneHostHasNoNetwork) {
  Measurements all;
  all.hosts = {{"a", {0, 1}}};
  all.inside_rate = {4e9};
  all.inside_latency = {1e-5};
  all.all_reduce = {{1e6, 0.001}};
  const Profile profile = network_profile(all);
  EXPECT_EQ(profile.hosts[0].send, std::numeric_limits<double>::infinity());
  EXPECT_EQ(profile.all_reduce.size(), 1u);
  EXPECT_EQ(parse_profile(print_profile(profile), "p.json").workers(), 2);
  EXPECT_THAT(remarks(all, profile), IsEmpty());
}

TEST(Evaluate, RatesAreReadable) {
  EXPECT_EQ(rate_text(12'345), "12.3 kB/s");
  EXPECT_EQ(rate_text(117.4e6), "117 MB/s");
  EXPECT_EQ(rate_text(1.25e10), "12.5 GB/s");
}

}  // namespace
}  // namespace starling
