// Messages that go one after the other.
#include "starling/exchange/in_turn.h"

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>

namespace starling {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

Time stopped_clock() { return {}; }

struct InTurnTest : testing::Test {
  void add(int to, std::size_t bytes, SwapId id = {1, 0}, FrameType type = FrameType::part) {
    messages.add(to, {.type = type, .round = id.round, .block = id.block},
                 payload_of(std::make_shared<const Buffer>(bytes)));
  }
  std::vector<std::string> take() { return std::exchange(sent, {}); }

  std::vector<std::string> sent;
  InTurn messages{[this](int to, const Frame& frame, const Payload& payload) {
                    EXPECT_TRUE(payload.owner);
                    sent.push_back(fmt::format("{}.{} to {}", frame.round, frame.block, to));
                  },
                  stopped_clock};
};

constexpr std::size_t kLarge = 1 << 20;

TEST_F(InTurnTest, FourLargeOnesAreUnderWayAndTheNextGoesWhenOneHasArrived) {
  for (const int to : {1, 2, 3, 4, 5, 6}) add(to, kLarge);
  EXPECT_THAT(take(), ElementsAre("1.0 to 1", "1.0 to 2", "1.0 to 3", "1.0 to 4"));
  messages.arrived(2, FrameType::part, {1, 0});
  EXPECT_THAT(take(), ElementsAre("1.0 to 5"));
  messages.arrived(1, FrameType::part, {1, 0});
  EXPECT_THAT(take(), ElementsAre("1.0 to 6"));
  for (const int from : {3, 4, 5, 6}) messages.arrived(from, FrameType::part, {1, 0});
  EXPECT_THAT(take(), IsEmpty());
  EXPECT_EQ(messages.under_way(), 0U);
}

TEST_F(InTurnTest, OneLargeOneToEachAndOthersOvertake) {
  add(1, kLarge, {1, 0});
  add(1, kLarge, {1, 1});
  add(1, kLarge, {1, 2});
  add(2, kLarge, {1, 1});
  EXPECT_THAT(take(), ElementsAre("1.0 to 1", "1.1 to 2"));
  messages.arrived(2, FrameType::part, {1, 1});
  EXPECT_THAT(take(), IsEmpty());
  messages.arrived(1, FrameType::part, {1, 0});
  EXPECT_THAT(take(), ElementsAre("1.1 to 1"));
}

TEST_F(InTurnTest, SmallOnesGoTogether) {
  for (std::uint32_t block = 0; block < 20; ++block) add(1, 4096, {1, block});
  EXPECT_THAT(take(), SizeIs(16));  // 64 KB
  for (int to = 2; to <= 100; ++to) add(to, 4096);
  EXPECT_THAT(take(), SizeIs(48));  // 256 KB in all
  messages.arrived(1, FrameType::part, {1, 0});
  EXPECT_THAT(take(), ElementsAre("1.16 to 1"));
}

TEST_F(InTurnTest, WordOfAnotherMessageChangesNothing) {
  for (const std::uint32_t block : {0U, 1U}) add(1, kLarge, {1, block});
  take();
  messages.arrived(1, FrameType::mean, {1, 0});
  messages.arrived(1, FrameType::part, {2, 0});
  messages.arrived(2, FrameType::part, {1, 0});
  messages.arrived(1, FrameType::part, {1, 1});  // it waits
  EXPECT_THAT(take(), IsEmpty());
  EXPECT_EQ(messages.under_way(), 1U);
}

TEST_F(InTurnTest, WhatIsCancelledMakesRoomForOthers) {
  for (const std::uint32_t block : {0U, 1U}) {
    for (const int to : {1, 2}) add(to, kLarge, {1, block});
  }
  take();
  messages.cancel({1, 0});
  EXPECT_THAT(take(), ElementsAre("1.1 to 1", "1.1 to 2"));
}

TEST_F(InTurnTest, WhoIsGoneIsNotWaitedFor) {
  for (const int to : {1, 2, 3, 4, 1, 5, 6}) add(to, kLarge);
  take();
  messages.disconnected(1);
  EXPECT_THAT(take(), ElementsAre("1.0 to 5"));
  messages.disconnected(2);
  EXPECT_THAT(take(), ElementsAre("1.0 to 6"));
}

TEST_F(InTurnTest, APartAndAMeanOfOneSwapAreTwoMessages) {
  add(1, 40000, {1, 0}, FrameType::part);
  add(1, 40000, {1, 0}, FrameType::mean);
  add(1, 40000, {1, 1});
  EXPECT_THAT(take(), SizeIs(2));
  messages.arrived(1, FrameType::mean, {1, 0});
  EXPECT_THAT(take(), ElementsAre("1.1 to 1"));
  EXPECT_EQ(messages.under_way(), 2U);
}

TEST_F(InTurnTest, WhatIsInAHurryGoesAndCountsNoLonger) {
  for (const std::uint32_t block : {0U, 1U}) {
    for (int to = 1; to <= 5; ++to) add(to, kLarge, {1, block});
  }
  take();
  messages.hurry({1, 0});
  EXPECT_THAT(take(), ElementsAre("1.0 to 5", "1.1 to 1", "1.1 to 2", "1.1 to 3", "1.1 to 4"));
}

// A card that sends one message after the other, at `rate` bytes a second. The acknowledgement of
// each comes `round_trip` after its end.
struct Line {
  // Seconds until this many are acknowledged, and the most that was in flight in that time.
  std::pair<double, std::size_t> carry(int many, std::size_t bytes) {
    std::size_t most = 0;
    const double begin = now;
    for (int k = 0; k < many; ++k) {
      messages.add(k % 7, {.type = FrameType::part, .round = ++round, .block = 0},
                   payload_of(std::make_shared<const Buffer>(bytes)));
    }
    while (!words.empty()) {
      most = std::max(most, messages.under_way() * bytes);
      const auto [when, to, of_round] = words.front();
      words.pop_front();
      now = when;
      messages.arrived(to, FrameType::part, {of_round, 0});
    }
    return {now - begin, most};
  }
  struct Word {
    double when;
    int to;
    std::uint64_t round;
  };
  double rate, round_trip;
  double now = 0, free = 0;
  std::uint64_t round = 0;
  std::deque<Word> words{};
  InTurn messages{[this](int to, const Frame& frame, const Payload& payload) {
                    free = std::max(free, now) + static_cast<double>(payload.bytes.size()) / rate;
                    words.push_back({free + round_trip, to, frame.round});
                  },
                  [this] { return Time(of_seconds(now)); }};
};

TEST(InTurn, TheLineIsFullHoweverLongWordTakes) {
  constexpr std::size_t kSize = 1 << 15;
  for (const double round_trip : {1e-4, 1e-2}) {
    Line line{.rate = 1e9, .round_trip = round_trip};
    line.messages.round_trip(3, of_seconds(5 * round_trip));
    line.messages.round_trip(3, of_seconds(round_trip));
    line.messages.round_trip(3, of_seconds(-1));
    line.carry(5000, kSize);
    const auto [seconds, most] = line.carry(5000, kSize);
    EXPECT_LT(seconds, 1.02 * 5000 * kSize / line.rate + round_trip) << round_trip;
    EXPECT_LT(most, (1 << 18) + 2.1 * line.rate * round_trip + 2 * kSize) << round_trip;
  }
}

TEST(InTurn, NoMoreIsUnderWayThanTheLineCallsFor) {
  Line line{.rate = 1e7, .round_trip = 1e-4};
  line.messages.round_trip(3, of_seconds(1e-4));
  EXPECT_LE(line.carry(1000, 1 << 15).second, std::size_t{(1 << 18) + (1 << 15)});
  Line unknown{.rate = 1e9, .round_trip = 1e-2};  // the acknowledgement time is unknown
  EXPECT_LE(unknown.carry(1000, 1 << 15).second, std::size_t{1 << 18});
}

TEST(InTurn, WhatFollowsWordOfManyAtOnceIsNotMoreThanTwiceAsMuch) {
  Time now{};
  int sent = 0;
  InTurn messages([&](int, const Frame&, const Payload&) { ++sent; }, [&] { return now; });
  messages.round_trip(1, of_seconds(1));
  for (std::uint32_t block = 0; block < 100; ++block) {
    messages.add(static_cast<int>(block % 50), {.type = FrameType::part, .round = 1, .block = block},
                 payload_of(std::make_shared<const Buffer>(1 << 16)));
  }
  EXPECT_EQ(sent, 4);
  now += of_seconds(1e-9);
  for (int to = 0; to < 4; ++to) messages.arrived(to, FrameType::part, {1, static_cast<std::uint32_t>(to)});
  EXPECT_EQ(sent, 4 + 8);
}

// In any order of events, each message goes at most once, those that are not taken back go, and
// nothing is in flight in the end.
TEST(InTurn, NothingIsLostOrStuck) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 dice(seed);
    const auto below = [&](std::uint64_t n) { return static_cast<int>(dice() % n); };
    using Key = std::tuple<int, FrameType, SwapId>;
    std::set<Key> added, sent, taken_back;
    std::map<Key, std::size_t> on_the_way;
    InTurn messages(
        [&](int to, const Frame& frame, const Payload& payload) {
          const Key key{to, frame.type, {frame.round, frame.block}};
          EXPECT_TRUE(sent.insert(key).second);
          on_the_way[key] = payload.bytes.size();
        },
        stopped_clock);
    const auto arrives = [&](const Key key) {
      on_the_way.erase(key);
      messages.arrived(std::get<0>(key), std::get<1>(key), std::get<2>(key));
    };
    const auto take_back = [&](auto which) {
      std::erase_if(on_the_way, [&](const auto& entry) { return which(entry.first); });
      for (const Key& key : added) {
        if (which(key)) taken_back.insert(key);
      }
    };
    for (int event = 0; event < 400; ++event) {
      const Key key{below(7),
                    below(2) == 0 ? FrameType::part : FrameType::mean,
                    {static_cast<std::uint64_t>(event), static_cast<std::uint32_t>(below(3))}};
      const int what = below(20);
      if (what < 10) {
        added.insert(key);
        const std::size_t bytes = below(2) == 0 ? 5000 : 300000;
        messages.add(
            std::get<0>(key),
            {.type = std::get<1>(key), .round = std::get<2>(key).round, .block = std::get<2>(key).block},
            payload_of(std::make_shared<const Buffer>(bytes)));
      } else if (what < 18 && !on_the_way.empty()) {
        arrives(std::next(on_the_way.begin(), below(on_the_way.size()))->first);
      } else if (what == 18 && !added.empty()) {
        const SwapId id = std::get<2>(*std::next(added.begin(), below(added.size())));
        if (below(2) == 0) {
          take_back([&](const Key& one) { return std::get<2>(one) == id; });
          messages.cancel(id);
        } else {
          messages.hurry(id);
          std::erase_if(on_the_way, [&](const auto& entry) { return std::get<2>(entry.first) == id; });
        }
      } else if (what == 19) {
        take_back([&](const Key& one) { return std::get<0>(one) == std::get<0>(key); });
        messages.disconnected(std::get<0>(key));
      }
      EXPECT_EQ(messages.under_way(), on_the_way.size());
      std::map<int, std::size_t> large;
      for (const auto& [one, bytes] : on_the_way) large[std::get<0>(one)] += bytes > 5000 ? 1 : 0;
      for (const auto& [to, many] : large) EXPECT_LE(many, 1U) << "to " << to;
    }
    while (!on_the_way.empty()) arrives(on_the_way.begin()->first);
    EXPECT_EQ(messages.under_way(), 0U);
    for (const Key& key : added)
      EXPECT_TRUE(sent.contains(key) || taken_back.contains(key)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace starling
