#include "starling/membership/door.h"

#include <future>

#include <gtest/gtest.h>

#include "starling/transport/tcp/proof.h"

namespace starling {
namespace {

class AtTheDoor : public testing::Test {
 protected:
  World worker(int rank, const std::string& token = "sixteen bytes or more") const {
    World world;
    world.rank = rank;
    world.size = 4;
    world.token = token;
    world.store = store;
    return world;
  }
  Door door(int rank) const { return {worker(rank), "optimizer-0"}; }

  std::shared_ptr<MemoryStore> store = std::make_shared<MemoryStore>();
};

TEST_F(AtTheDoor, ANewcomerKnocksAndIsRefused) {
  EXPECT_FALSE(door(0).knock_of(2));
  const Knock knock{.life = 17, .donor = 1, .terms = 0xfedcba98};
  door(2).knock(knock);
  EXPECT_EQ(door(0).knock_of(2), knock);
  EXPECT_FALSE(door(0).knock_of(1));
  EXPECT_FALSE(door(2).answer_to(17));
  door(1).answer(17, "its options differ");
  EXPECT_EQ(door(2).answer_to(17), "its options differ");
  EXPECT_FALSE(door(2).answer_to(18)) << "another process of the seat";
  door(1).answer(18, "");
  EXPECT_EQ(door(2).answer_to(18), "");
}

TEST_F(AtTheDoor, ADonorShowsThatItLives) {
  EXPECT_EQ(door(2).beat_of(17), "");
  door(1).beat(17);
  const std::string first = door(2).beat_of(17);
  EXPECT_NE(first, "");
  EXPECT_EQ(door(2).beat_of(17), first);
  door(1).beat(17);
  EXPECT_NE(door(2).beat_of(17), first);
}

TEST_F(AtTheDoor, AKnockHasFourNumbersInTheirRanges) {
  const std::string key = "starling/door/optimizer-0/knock/2";
  const auto heard = [&](const std::string& text) {
    store->set(key, tcp::sign("sixteen bytes or more", key + " " + text) + " " + text);
    return door(0).knock_of(2).has_value();
  };
  EXPECT_TRUE(heard("17 3 4294967295 9"));
  for (const char* text : {"", "17", "17 1", "17 1 5", "0 1 5 9", "-17 1 5 9", "17 4 5 9", "17 -1 5 9",
                           "17 1 -5 9", "17 1 4294967296 9", "17 1 5x 9", "17 1 5 x", "17 1 5 9 6"})
    EXPECT_FALSE(heard(text)) << text;
}

TEST_F(AtTheDoor, TheLatestEpochStands) {
  EXPECT_FALSE(door(0).epoch());
  const Epoch first{.number = 1, .lives = {{0, 5}}}, second{.number = 2, .lives = {{0, 5}, {1, 6}}};
  door(0).publish(second);
  door(1).publish(first);  // a late writer
  EXPECT_EQ(door(3).epoch(), second);
}

TEST_F(AtTheDoor, EachKnockAndEachEpochRings) {
  const std::string before = door(0).bell();
  door(2).knock({.life = 1});
  const std::string knocked = door(0).bell();
  EXPECT_NE(knocked, before);
  door(2).publish({.number = 1, .lives = {{0, 5}}});
  EXPECT_NE(door(0).bell(), knocked);
}

TEST_F(AtTheDoor, AStrangerIsNotHeard) {
  const Door stranger(worker(2, "another token of 16 bytes"), "optimizer-0");
  stranger.knock({.life = 1});
  stranger.publish({.number = 9, .lives = {{0, 5}}});
  stranger.answer(3, "go away");
  EXPECT_FALSE(door(0).knock_of(2));
  EXPECT_FALSE(door(0).epoch());
  EXPECT_FALSE(door(0).answer_to(3));
  // Nor is a true word in another place.
  door(2).knock({.life = 1});
  store->set("starling/door/optimizer-0/knock/3", *store->look("starling/door/optimizer-0/knock/2"));
  EXPECT_FALSE(door(0).knock_of(3));
}

// Its token may be this one's, and anybody may have kept its words.
TEST_F(AtTheDoor, WordsOfAnEarlierRunAreNotHeard) {
  Door mine = door(0), newcomer = door(2);
  mine.follow(41);
  newcomer.follow(40);
  const Epoch present{.number = 3, .lives = {{0, 5}}, .run = 41},
      old{.number = 9, .lives = {{1, 6}}, .run = 40};
  mine.publish(present);
  door(1).publish(old);
  EXPECT_FALSE(mine.epoch());
  mine.publish(present);
  EXPECT_EQ(door(1).epoch(), present);
  newcomer.knock({.life = 7, .donor = 0});
  EXPECT_FALSE(mine.knock_of(2));
  EXPECT_FALSE(mine.is_followed(2, 6));
  newcomer.follow(41);
  newcomer.knock({.life = 7, .donor = 0});
  EXPECT_TRUE(mine.knock_of(2));
}

TEST_F(AtTheDoor, AWatchHearsTheBell) {
  std::promise<Knock> heard;
  bool told = false;
  const DoorWatch watch(door(0), [&] {
    const auto knock = door(0).knock_of(2);
    if (knock && !std::exchange(told, true)) heard.set_value(*knock);
  });
  door(2).knock({.life = 4, .donor = 0});
  EXPECT_EQ(heard.get_future().get().life, 4);
}

}  // namespace
}  // namespace starling
