#include "starling/membership/epoch.h"

#include <gtest/gtest.h>

#include "starling/core/random.h"

namespace starling {
namespace {

TEST(Epoch, ItsTextHoldsIt) {
  const Epoch epoch{.number = 7, .lives = {{0, 517}, {2, 9'000'000'000'000}}, .run = 41};
  EXPECT_EQ(to_text(epoch), "7 41 0:517 2:9000000000000");
  EXPECT_EQ(read_epoch(to_text(epoch), 3), epoch);
  EXPECT_EQ(read_epoch("0 0", 3), Epoch{});
}

TEST(Epoch, KnowsWhoIsThere) {
  const Epoch epoch{.number = 1, .lives = {{0, 5}, {2, 6}}};
  EXPECT_EQ(epoch.members(), (std::vector<int>{0, 2}));
  EXPECT_EQ(epoch.away(4), (std::set<int>{1, 3}));
  EXPECT_TRUE(epoch.has(2, 6));
  EXPECT_FALSE(epoch.has(2, 5)) << "an earlier process of the seat";
  EXPECT_FALSE(epoch.has(1, 5));
}

// Anybody may have written it.
TEST(Epoch, RefusesOtherTexts) {
  for (const char* text :
       {"", "x", "-1 4", "1", "1 0:5", "1 -4", "1 4 0", "1 4 0:", "1 4 :5", "1 4 3:5", "1 4 -1:5", "1 4 0:0",
        "1 4 0:-5", "1 4 0:5 0:6", "1 4 0:5x", "1 4 0x:5", "99999999999999999999 4 0:5",
        "1 99999999999999999999 0:5", "1 4 0:99999999999999999999"})
    EXPECT_FALSE(read_epoch(text, 3)) << text;
}

TEST(Epoch, EachLifeIsAnother) {
  const auto life = new_id();
  EXPECT_GT(life, 0);
  EXPECT_NE(new_id(), life);
}

}  // namespace
}  // namespace starling
