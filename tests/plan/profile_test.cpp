#include "starling/plan/profile.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "starling/plan/simulate.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

// Two hosts, with two workers and with one; two blocks; two iterations.
Profile small() {
  Profile profile;
  profile.hosts = {{"a", {0, 2}, 1.25e9, 1e9}, {"b", {1}, 1.1e9, 1.2e9}};
  profile.latency = 5e-5;
  profile.inside_latency = 2e-6;
  profile.inside_rate = 8e9;
  profile.links = {{0, 1, 9e-5, 3e8}};
  profile.blocks = {1 << 20, 1.0 / 3 * (1 << 22)};
  for (int i = 0; i < 3; ++i) {
    const double s = 1 + i / 10.0;
    profile.compute.push_back(
        {{0, 0.001}, {0.01 * s, 0.1 / 3}, {{0.02, 0.021}, {0.03 * s, 0}}, {{1e-3, 0}, {2e-3, 0}}});
  }
  profile.shapes = {{1, 0.95}, {3, 1.25}};
  profile.all_reduce = {{1e5, 0.001}, {1e6, 0.008}};
  return profile;
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return at == std::string::npos ? text : text.replace(at, what.size(), by);
}

std::string refused(const std::string& text) {
  const std::string said = refusal<UsageError>([&] { parse_profile(text, "p.json"); });
  EXPECT_EQ(said.find('\n'), std::string::npos);
  return said;
}

TEST(Profile, WhatIsPrintedIsReadBackToTheBit) {
  const Profile before = small(), after = parse_profile(print_profile(before), "p.json");
  EXPECT_EQ(print_profile(after), print_profile(before));
  ASSERT_EQ(after.hosts.size(), 2u);
  EXPECT_EQ(after.hosts[1].name, "b");
  EXPECT_THAT(after.hosts[0].workers, ElementsAre(0, 2));
  EXPECT_EQ(after.hosts[0].receive, 1e9);
  EXPECT_EQ(after.inside_rate, 8e9);
  EXPECT_EQ(after.links.at(0).to, 1);
  EXPECT_EQ(after.blocks, before.blocks);
  EXPECT_EQ(after.workers(), 3);
  EXPECT_EQ(after.compute[2].forward, before.compute[2].forward);
  EXPECT_EQ(after.compute[2].backward, before.compute[2].backward);
  EXPECT_EQ(after.compute[2].update, before.compute[2].update);
  EXPECT_EQ(after.compute[2].data_wait, before.compute[2].data_wait);
  EXPECT_EQ(after.shapes.at(1).peers, 3);
  EXPECT_EQ(after.shapes.at(1).share, 1.25);
  EXPECT_EQ(after.all_reduce.at(1).seconds, 0.008);
}

TEST(Profile, NamesItsFormatVersionAndUnits) {
  const std::string text = print_profile(small());
  EXPECT_EQ(refused("{}"), "p.json:1: it is not a profile: format must be \"starling-profile\"");
  EXPECT_EQ(refused("[]"), "p.json: it must contain one object, not an array");
  EXPECT_EQ(refused(replaced(text, "\"version\": 2", "\"version\": 1")),
            "p.json:3: version must be 2, not 1: measure again with this version of Starling");
  EXPECT_EQ(refused(replaced(text, "\"time\": \"s\"", "\"time\": \"ms\"")),
            "p.json:5: units: time must be \"s\", not \"ms\"");
}

TEST(Profile, TruncatedFilesAreRefused) {
  const std::string text = print_profile(small());
  for (std::size_t length = 0; length + 2 < text.size(); length += 7) {
    EXPECT_THAT(refused(text.substr(0, length)), testing::StartsWith("p.json:")) << length;
  }
}

TEST(Profile, BadValuesAreNamedWithTheirPlace) {
  const std::string text = print_profile(small());
  const auto with = [&](const std::string& what, const std::string& by) {
    return refused(replaced(text, what, by));
  };
  EXPECT_THAT(
      with("0.021", "-0.021"),
      EndsWith("compute of worker 0: backward of block 0 is -0.021 seconds, must be at least 0 and at "
               "most 10000"));
  EXPECT_THAT(with("\"forward\": [\n    0.01,", "\"forward\": [\n    0,"),
              EndsWith("forward is 0 seconds, must be at least 1e-09 and at most 10000"));
  EXPECT_THAT(with("0.021", "1e999"), testing::StartsWith("p.json:"));
  EXPECT_THAT(with("0.021", "null"), EndsWith("backward of block 0 must be a number of seconds, not null"));
  EXPECT_THAT(with("0.021", "0.021, 0.022"),
              EndsWith("backward of block 0 has 3 entries, must have 2: one for each iteration"));
  EXPECT_THAT(
      with("\"send\": 1250000000.0", "\"send\": 0"),
      EndsWith("host 0: send is 0 bytes a second, must be at least 1000 and at most 1000000000000000"));
  EXPECT_THAT(with("\"worker\": 2", "\"worker\": 3"), EndsWith("compute: worker is 3, allowed are 0 to 2"));
  EXPECT_THAT(with("\"worker\": 2", "\"worker\": 1"), EndsWith("compute of worker 1: it is listed twice"));
  EXPECT_THAT(with("\"to\": \"b\"", "\"to\": \"c\""), EndsWith("link 0: to: there is no host \"c\""));
  EXPECT_THAT(with("\"to\": \"b\"", "\"to\": \"a\""), EndsWith("link 0: its ends must be two hosts"));
  EXPECT_THAT(with("\"name\": \"b\"", "\"name\": \"a\""), EndsWith("another host is called \"a\" too"));
  EXPECT_THAT(with("\"share\": 0.95", "\"share\": 0"),
              EndsWith("shape 0: share is 0 times an interface, must be at least 0.001 and at most 1000"));
  EXPECT_THAT(with("\"peers\": 3", "\"peers\": 1"),
              EndsWith("shape 1: its peers must be more than those of the previous entry"));
  EXPECT_THAT(with("\"blocks\"", "\"block\""), HasSubstr("unknown key \"block\", did you mean blocks?"));
  EXPECT_THAT(with("\"bytes\": 1000000.0", "\"bytes\": 100000.0"),
              EndsWith("all_reduce 1: its bytes must be more than those of the previous entry"));
}

TEST(Profile, EveryNumberHasARange) {
  const std::string text = print_profile(small());
  // A key of each kind, with values that no cluster has.
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, std::string>>{{"\"receive\": 1000000000.0", "1e-308"},
                                                        {"\"receive\": 1000000000.0", "1e308"},
                                                        {"\"rate\": 8000000000.0", "999"},
                                                        {"\"rate\": 300000000.0", "2e15"},
                                                        {"\"latency\": 5e-05", "1e5"},
                                                        {"\"latency\": 2e-06", "-1e-300"},
                                                        {"\"share\": 0.95", "1e-9"},
                                                        {"\"peers\": 1", "4097"},
                                                        {"\"bytes\": 1048576.0", "1e13"},
                                                        {"\"bytes\": 1048576.0", "0.5"},
                                                        {"\"bytes\": 100000.0", "1e-300"},
                                                        {"\"seconds\": 0.008", "1e300"}}) {
    const std::string name = key.substr(0, key.find(':'));
    EXPECT_THAT(refused(replaced(text, key, name + ": " + value)),
                testing::MatchesRegex(".*(, must be at least .* and at most |, allowed are 1 to 4096).*"))
        << key << " " << value;
  }
  EXPECT_THAT(refused(replaced(text, "0.021", "100000")), HasSubstr("is 100000 seconds, must be"));
  EXPECT_THAT(refused(replaced(text, "0.03333333333333333", "1e-300")), HasSubstr("forward is 1e-300"));
  Profile far = small();
  far.hosts[1].workers = {1 << 20};
  EXPECT_THAT(refused(print_profile(far)), HasSubstr("a worker is 1048576, allowed are 0 to 4095"));
  Profile named = small();
  named.hosts[0].name = "a\x1b[31m";
  EXPECT_THAT(refused(print_profile(named)), HasSubstr("name is \"a\\u001B[31m\", must be printable"));
}

TEST(Profile, AFewRecordedWorkersDoNotStandForTooMany) {
  Profile network = small(), compute = small();
  network.hosts = {{"a", {}, 1e9, 1e9}};
  for (int i = 0; i < 4096; ++i) network.hosts[0].workers.push_back(i);
  compute.compute.resize(1);
  compute.compute[0] = {std::vector<double>(50'000, 1),
                        std::vector<double>(50'000, 1),
                        {2, std::vector<double>(50'000, 1)},
                        {2, std::vector<double>(50'000, 1)}};
  EXPECT_THAT([&] { joined(network, compute); },
              testing::ThrowsMessage<UsageError>(HasSubstr("recorded times for 4096 workers")));
}

TEST(Profile, EveryWorkerIsThereOnce) {
  Profile lost = small();
  lost.hosts[0].workers = {0, 3};
  EXPECT_THAT(refused(print_profile(lost)),
              EndsWith("worker 2 is on no host, but there are workers up to 3"));
  Profile twice = small();
  twice.hosts[0].workers = {0, 1};
  EXPECT_THAT(refused(print_profile(twice)), EndsWith("host 1: worker 1 is on two hosts, or twice on one"));
  Profile fewer = small();
  fewer.compute.pop_back();
  EXPECT_THAT(refused(print_profile(fewer)), EndsWith("compute of worker 2 is missing"));
  Profile block = small();
  block.blocks.push_back(5);
  EXPECT_THAT(refused(print_profile(block)),
              EndsWith("backward has 2 lists, must have 3: one for each block"));
}

TEST(Profile, HalvesAreReadAndJoined) {
  Profile network = small(), compute = small();
  network.blocks.clear();
  network.compute.clear();
  compute.hosts.clear();
  compute.compute.pop_back();
  network = parse_profile(print_profile(network), "network.json");
  compute = parse_profile(print_profile(compute), "compute.json");
  EXPECT_TRUE(network.has_network() && !network.has_compute());
  EXPECT_TRUE(compute.has_compute() && !compute.has_network());
  EXPECT_EQ(network.workers(), 3);
  EXPECT_EQ(compute.workers(), 2);
  const Profile whole = joined(network, compute);
  EXPECT_EQ(whole.workers(), 3);
  EXPECT_EQ(whole.blocks, compute.blocks);
  ASSERT_EQ(whole.compute.size(), 3u);
  EXPECT_EQ(whole.compute[1].forward, compute.compute[1].forward);
  EXPECT_EQ(whole.compute[2].forward, compute.compute[0].forward);
  EXPECT_EQ(print_profile(parse_profile(print_profile(whole), "p.json")), print_profile(whole));
}

TEST(Profile, HalvesAreWholeInThemselves) {
  Profile neither;
  EXPECT_THAT(refused(print_profile(neither)),
              EndsWith("it holds neither a network (hosts) nor compute (blocks)"));
  Profile compute = small();
  compute.hosts.clear();
  EXPECT_THAT(refused(replaced(print_profile(compute), "\"blocks\"", "\"links\"")),
              EndsWith("links without hosts"));
}

TEST(Profile, AModelIsCutIntoOtherBlocks) {
  Profile profile = small();
  profile.blocks = {3e6, 1e6};
  const auto& old = profile.compute[0];
  const Profile halves = in_blocks_of(profile, 2e6);
  EXPECT_THAT(halves.blocks, ElementsAre(2e6, 2e6));
  for (std::size_t t = 0; t < 2; ++t) {
    EXPECT_NEAR(halves.compute[0].backward[0][t], old.backward[0][t] * 2 / 3, 1e-12);
    EXPECT_NEAR(halves.compute[0].backward[1][t], old.backward[0][t] / 3 + old.backward[1][t], 1e-12);
    EXPECT_NEAR(halves.compute[0].update[1][t], old.update[0][t] / 3 + old.update[1][t], 1e-12);
  }
  EXPECT_EQ(in_blocks_of(profile, 1.5e6).blocks.size(), 3u);
  const Profile one = in_blocks_of(profile, 1e9);
  EXPECT_THAT(one.blocks, ElementsAre(4e6));
  EXPECT_NEAR(one.compute[2].update[0][0], 3e-3, 1e-12);
}

// The network is required only between hosts, and memory only if two workers share one.
TEST(Profile, WhatOneHostNeedNotSay) {
  Profile profile = small();
  profile.hosts = {{"a", {0, 1, 2}}};
  profile.links.clear();
  const Profile one = parse_profile(print_profile(profile), "p.json");
  EXPECT_EQ(one.hosts[0].send, std::numeric_limits<double>::infinity());
  EXPECT_EQ(one.inside_rate, 8e9);
  profile.inside_rate = std::numeric_limits<double>::infinity();
  EXPECT_THAT(refused(print_profile(profile)), EndsWith("the key inside is missing"));
  profile = small();
  profile.hosts[0].send = std::numeric_limits<double>::infinity();
  EXPECT_THAT(refused(print_profile(profile)), EndsWith("host 0: the key send is missing"));
  profile.hosts = {{"a", {0}, 1e9, 1e9}, {"b", {1}, 1e9, 1e9}, {"c", {2}, 1e9, 1e9}};
  profile.inside_rate = std::numeric_limits<double>::infinity();
  EXPECT_EQ(parse_profile(print_profile(profile), "p.json").inside_rate, profile.inside_rate);
}

TEST(Profile, FilesThatAreNotThere) {
  EXPECT_EQ(refusal<UsageError>([] { read_profile("no/such.json"); }),
            "no/such.json: cannot be opened: No such file or directory");
}

TEST(Profile, IsWhatTheModelRunsOn) {
  const Profile profile = small();
  const Network network = network_of(profile);
  EXPECT_THAT(network.host_of, ElementsAre(0, 1, 0));
  EXPECT_EQ(network.links.size(), 1u);
  EXPECT_EQ(network.shapes.size(), 2u);
  const Work work = work_of(profile);
  EXPECT_EQ(work.block_bytes[0], 1 << 20);
  EXPECT_EQ(work.mean_bytes[0], 1 << 20);
  EXPECT_EQ(work.compute.size(), 3u);
}

}  // namespace
}  // namespace starling
