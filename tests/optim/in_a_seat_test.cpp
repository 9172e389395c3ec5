// One member of a run, and what it makes of the words in the store.
#include "starling/core/error.h"
#include "starling/membership/door.h"
#include "starling/optim/membership.h"
#include "tests/eventually.h"
#include "tests/optim/seat.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::IsEmpty;

class InASeat : public testing::Test {
 protected:
  World world(int rank = 0) const {
    World world = seat_of({});
    world.rank = rank;
    world.size = 2;
    world.store = store;
    world.timeouts.meet = 5s;
    return world;
  }
  static Epoch epoch(std::uint64_t number, std::int64_t life, std::int64_t other = 7) {
    return {.number = number, .lives = {{0, life}, {1, other}}};
  }

  std::shared_ptr<LosableStore> store = std::make_shared<LosableStore>();
  Membership member{world(), "a", 1};
  Door door{world(1), "a"};
};

TEST_F(InASeat, OfTwoEpochsWithOneNumberTheOneThatStandsCounts) {
  door.publish(epoch(3, member.life() + 1));
  member.set_epoch(epoch(3, member.life()));  // it did not see the other
  EXPECT_TRUE(eventually([&] { return member.has_news() && member.is_out(); }));
}

TEST_F(InASeat, AnEpochOfALostStoreIsPublishedLater) {
  store->is_lost = true;
  member.set_epoch(epoch(3, member.life()));
  store->is_lost = false;
  EXPECT_TRUE(eventually([&] { return door.epoch() == epoch(3, member.life()); }));
  store->start_again();
  EXPECT_TRUE(eventually([&] { return door.epoch() == epoch(3, member.life()); }));
}

TEST_F(InASeat, AnEpochOfAnEarlierRunIsReplaced) {
  Epoch mine = epoch(3, member.life()), earlier = epoch(9, member.life() + 1);
  mine.run = 41, earlier.run = 40;
  member.set_epoch(mine);
  door.publish(earlier);
  EXPECT_TRUE(eventually([&] { return door.epoch() == mine; }));
  EXPECT_FALSE(member.is_out());
}

TEST_F(InASeat, AWorkerWhoseRankWasTakenEnds) {
  member.set_epoch(epoch(3, member.life()));
  door.publish(epoch(4, member.life() + 1));
  EXPECT_EQ(refusal<UsageError>([&] { member.take_state(); }),
            "this worker cannot join the run: another process has taken its rank meanwhile");
}

TEST_F(InASeat, ANewcomerThatNobodyRefusesShowsThatTheProcessBeforeItHasEnded) {
  member.set_epoch(epoch(3, member.life()));
  const auto shows = [&](const std::set<int>& seats) {
    EXPECT_EQ(member.hasty_world(epoch(3, member.life())).fate(1).empty(), seats.empty());
    return eventually([&] { return member.started_again() == seats; });
  };
  door.knock({.life = 8, .donor = 0, .terms = 1});
  EXPECT_TRUE(shows({1}));
  door.answer(8, "another process has this rank, and takes part");
  EXPECT_TRUE(shows({}));
  door.knock({.life = 9, .donor = 0, .terms = 1});
  EXPECT_TRUE(shows({1}));
  member.set_epoch(epoch(4, member.life(), 9));
  EXPECT_TRUE(eventually([&] { return member.started_again().empty(); }));
}

// The newcomer of that knock has come in, or has asked another worker since.
TEST_F(InASeat, AKnockThatAnEarlierProcessHasAnsweredWantsNothing) {
  const auto wanted = [&] { return member.wanted([](int) { return false; }); };
  door.knock({.life = 8, .donor = 0, .terms = 1});
  door.answer(8, "");
  member.set_epoch(epoch(3, member.life()));
  EXPECT_TRUE(eventually([&] { return member.has_news(); }));
  EXPECT_THAT(wanted(), IsEmpty());
  door.knock({.life = 9, .donor = 0, .terms = 1});
  std::map<int, std::int64_t> later;
  EXPECT_TRUE(eventually([&] { return !(later = wanted()).empty(); }));
  EXPECT_THAT(later, ElementsAre(testing::Pair(1, 9)));
}

TEST_F(InASeat, ANewcomerThatFailsAtOnceDoesNotAskOnAndOn) {
  member.set_epoch(epoch(3, member.life()));
  LogLines lines;
  World full = world(1);
  full.log = lines.log();
  full.timeouts.meet = 2s;
  full.make_transport = [](const World&, const std::string&) -> std::unique_ptr<Transport> {
    throw Error("no descriptor is left");
  };
  EXPECT_EQ(refusal([&] { Membership(full, "a", 1).take_state(); }),
            "this worker cannot join the run: no descriptor is left");
  EXPECT_LE(lines.all().size(), 10U);
}

TEST_F(InASeat, ANewcomerWaitsForTheStore) {
  member.set_epoch(epoch(3, member.life()));
  Membership newcomer(world(1), "a", 1);
  store->is_lost = true;
  const Time begin = Clock::now();
  EXPECT_EQ(refusal([&] { newcomer.take_state(); }), "this worker cannot join the run: store: lost");
  EXPECT_GE(Clock::now() - begin, 5s);
}

}  // namespace
}  // namespace starling
