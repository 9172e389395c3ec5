// The members of a run change: who may join, what the store has to do with it, and donors that
// fail.
#include "starling/optim/membership.h"

#include "starling/core/crc32c.h"
#include "starling/core/error.h"
#include "tests/eventually.h"
#include "tests/optim/fragile_network.h"
#include "tests/optim/seat.h"

namespace starling {
namespace {

using namespace std::chrono_literals;
using at::Tensor;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Options ring() { return {.topology = "ring", .scheme = {"cta"}}; }

// A newcomer with other options harms nobody.
TEST(Membership, ANewcomerMustHaveTheSameOptions) {
  std::atomic<bool> refused = false;
  flock(3, [&](int i, World& world) {
    const Tensor x = parameter({4});
    auto optimizer = std::make_unique<Optimizer>(std::vector<Tensor>{x}, SGD{}, ring(), seat_of(world));
    optimizer->step();
    if (i == 1) {
      optimizer.reset();
      Options other = ring();
      other.wire = Wire::bf16;
      EXPECT_EQ(refusal<UsageError>([&] { Optimizer({x}, SGD{}, other, seat_of(world)); }),
                "this worker cannot join the run: its options or its parameters differ from the members'");
      refused = true;
      return;
    }
    while (!refused) {
      optimizer->step();
      std::this_thread::sleep_for(1ms);
    }
  });
}

TEST(Membership, AWorkerThatComesLaterDoesNotWaitForEver) {
  std::vector<World> worlds = World::threads(3);
  World world = seat_of(worlds[2]);
  world.initial_size = 2;
  world.timeouts.meet = 300ms;
  EXPECT_EQ(refusal<Error>([&] { Optimizer({parameter({4})}, SGD{}, ring(), world); }),
            "worker 2 joins a run that the first 2 workers begin, and it has not begun");
}

TEST(Membership, ARunWithoutMembersCannotBeJoined) {
  flock(2, [&](int, World& world) {
    const Tensor x = parameter({4});
    {
      Optimizer optimizer({x}, SGD{}, ring(), seat_of(world));
    }
    EXPECT_THAT(refusal<UsageError>([&] { Optimizer({x}, SGD{}, ring(), seat_of(world)); }),
                HasSubstr("no member of it is left"));
  });
}

// 4 workers on a hypercube; 3 cannot form one.
TEST(Membership, ATopologyThatIsNotPossibleForFewerIsReplaced) {
  std::atomic<int> left = 0;
  std::atomic<std::uint64_t> last = ~std::uint64_t{0};
  LogLines lines;
  flock(4, [&](int i, World& world) {
    world = seat_of(world);
    world.log = lines.log();
    const Options options{.topology = "hypercube", .scheme = {"cta"}};
    const Tensor x = parameter({4});
    auto optimizer = std::make_unique<Optimizer>(std::vector<Tensor>{x}, SGD{}, options, world);
    optimizer->step();
    if (i > 1) {  // two leave, one comes back
      optimizer.reset();
      ++left;
      if (i == 3) return;
      ASSERT_TRUE(eventually([&] { return left == 2; }));
      world = seat_of(world);
      optimizer = std::make_unique<Optimizer>(std::vector<Tensor>{x}, SGD{}, options, world);
      last = optimizer->steps() + 5;
    }
    while (optimizer->steps() < last) optimizer->step();
    EXPECT_THAT(optimizer->statistics().lost, ElementsAre(3));
    nobody_leaves_yet(*optimizer);
  });
  EXPECT_THAT(lines.text(),
              HasSubstr("topology hypercube is not possible for 3 workers: going on with base-2"));
}

TEST(Membership, AWorkerThatStaysAwayIsNoMemberOfTheNextEpoch) {
  std::atomic<std::uint64_t> last = ~std::uint64_t{0};
  LogLines lines;
  flock(4, [&](int i, World& world) {
    world.timeouts.silent = 2s;
    world = seat_of(world);
    world.log = lines.log(Level::info);
    const Tensor x = parameter({4});
    Optimizer optimizer({x}, SGD{}, ring(), world);
    optimizer.step();
    if (i == 2) return;
    while (optimizer.steps() < last) {
      optimizer.step();
      if (i == 0 && last > optimizer.steps() + 5 && lines.text().find("epoch 1 has") != std::string::npos)
        last = optimizer.steps() + 5;
    }
    nobody_leaves_yet(optimizer);
    EXPECT_THAT(optimizer.statistics().lost, ElementsAre(2));
  });
  EXPECT_THAT(lines.text(), AllOf(HasSubstr("worker 2 stayed away: a new epoch begins without"),
                                  HasSubstr("epoch 1 has workers 0, 1, 3")));
}

// They were not sent yet, so no neighbour has refused them.
TEST(Membership, AWorkerWithNaNsGivesNobodyItsState) {
  std::atomic<std::uint64_t> last = ~std::uint64_t{0};
  flock(3, [&](int i, World& world) {
    world.timeouts.silent = 1s;
    world = seat_of(world);
    const Tensor x = parameter({4});
    auto optimizer = std::make_unique<Optimizer>(std::vector<Tensor>{x}, SGD{}, ring(), world);
    optimizer->step();
    if (i == 2) {
      optimizer.reset();
      world = seat_of(world);
      optimizer = std::make_unique<Optimizer>(std::vector<Tensor>{x}, SGD{}, ring(), world);
      EXPECT_TRUE(at::isfinite(x).all().item<bool>());
      last = optimizer->steps() + 10;
    } else if (i == 0) {  // which worker 2 asks first
      const Door door(world, optimizer_channel(0));
      ASSERT_TRUE(eventually([&] {
        const auto knock = door.knock_of(2);
        return knock && door.answer_to(knock->life);
      }));
      x.detach().fill_(NAN);
      while (!optimizer->joined()) optimizer->step();
    }
    while (optimizer->steps() < last) optimizer->step();
    EXPECT_TRUE(at::isfinite(x).all().item<bool>());
    nobody_leaves_yet(*optimizer);
    EXPECT_THAT(optimizer->statistics().lost, IsEmpty());
  });
}

// Its store was lost with it, as if it hosts that. The others publish the run in the new one.
TEST(Membership, AWorkerOfTheBeginningComesBackToAnEmptyStore) {
  const auto store = std::make_shared<LosableStore>();
  std::atomic<std::uint64_t> last = ~std::uint64_t{0};
  flock(3, [&](int i, World& world) {
    world = seat_of(world);
    world.store = store;
    const Tensor x = parameter({4});
    auto optimizer = std::make_unique<Optimizer>(std::vector<Tensor>{x}, SGD{}, ring(), world);
    optimizer->step();
    if (i == 0) {
      optimizer.reset();
      store->start_again();
      world = seat_of(world);
      optimizer = std::make_unique<Optimizer>(std::vector<Tensor>{x}, SGD{}, ring(), world);
      EXPECT_GT(optimizer->steps(), 0U);
      last = optimizer->steps() + 5;
    }
    while (optimizer->steps() < last) optimizer->step();
    nobody_leaves_yet(*optimizer);
    EXPECT_THAT(optimizer->statistics().lost, IsEmpty());
  });
}

// Nobody begins a run before all are there that do.
TEST(Membership, AWorkerThatDoesNotComeToTheBeginningIsNamed) {
  std::vector<World> worlds = World::threads(3);
  World world = seat_of(worlds[0]);
  world.timeouts.meet = 300ms;
  EXPECT_EQ(refusal<Error>([&] { goes_on(world); }), "worker 1 has not come to begin the run");
  Door(seat_of(worlds[1]), optimizer_channel(0)).come();
  EXPECT_EQ(refusal<Error>([&] { goes_on(world); }), "worker 2 has not come to begin the run");
  Door(seat_of(worlds[2]), optimizer_channel(0)).come();
  EXPECT_FALSE(goes_on(world));
}

// Workers that wait long for others, but not for a silent one.
std::vector<World> patient_seats(int n, LogLines& lines) {
  std::vector<World> worlds = World::threads(n);
  for (World& world : worlds) {
    world = seat_of(world);
    world.timeouts = {.meet = 1h, .silent = 1s};
    world.log = lines.log(Level::info);
  }
  return worlds;
}

// Gives a state of three bytes to the newcomers that want one. False: there is none.
bool give(Membership& member) {
  const auto wanted = member.wanted([](int) { return false; });
  for (const auto& [seat, life] : wanted) {
    auto file = std::make_unique<MemoryFile>();
    file->resize(3);
    member.donate(seat, life, std::move(file), crc32c(std::vector<std::byte>(3)));
  }
  return !wanted.empty();
}

// The donor has answered, and stops before its state goes: it does not show that it lives. The
// newcomer asks the other member, long before half of `meet` is over.
TEST(Membership, ADonorThatStopsBeforeItSendsIsFoundOut) {
  LogLines lines;
  const std::vector<World> worlds = patient_seats(3, lines);
  Membership member(worlds[1], "a", 1), newcomer(worlds[2], "a", 1);
  const Door stopped(worlds[0], "a");
  member.set_epoch({.number = 3, .lives = {{0, 7}, {1, member.life()}}});
  std::atomic<bool> has_come = false;
  std::thread others([&] {
    std::set<std::int64_t> answered;
    while (!has_come) {
      const auto knock = stopped.knock_of(2);
      if (knock && knock->donor == 0 && answered.insert(knock->life).second) stopped.answer(knock->life, "");
      give(member);
      std::this_thread::sleep_for(1ms);
    }
  });
  EXPECT_EQ(newcomer.take_state().bytes().size(), 3U);
  has_come = true;
  others.join();
  EXPECT_EQ(newcomer.donor(), 1);
  EXPECT_THAT(lines.text(), HasSubstr("worker 0 does not answer: asking another worker"));
}

// It has answered, and then takes the state of another member itself.
TEST(Membership, ADonorThatJoinsAgainKeepsNobodyWaiting) {
  LogLines lines;
  std::vector<World> worlds = patient_seats(3, lines);
  for (World& world : worlds) world.timeouts.silent = 1h;
  Membership away(worlds[0], "a", 1), member(worlds[1], "a", 1), newcomer(worlds[2], "a", 1);
  const auto set_epoch = [&](Membership& of, std::uint64_t number) {
    of.set_epoch({.number = number, .lives = {{0, away.life()}, {1, member.life()}}});
  };
  set_epoch(away, 3);
  set_epoch(member, 3);
  std::atomic<bool> has_come = false;
  std::thread gives([&] {
    while (!has_come) {
      give(member);
      std::this_thread::sleep_for(1ms);
    }
  });
  std::thread goes([&] {
    const Door door(worlds[0], "a");
    EXPECT_TRUE(eventually([&] {
      const auto knock = door.knock_of(2);
      return knock && knock->donor == 0 && door.answer_to(knock->life);
    }));
    EXPECT_EQ(away.take_state().bytes().size(), 3U);
    set_epoch(away, 4);
  });
  EXPECT_EQ(newcomer.take_state().bytes().size(), 3U);
  EXPECT_EQ(newcomer.donor(), 1);
  EXPECT_THAT(lines.text(), HasSubstr("worker 0 was started again: asking another worker"));
  goes.join();
  has_come = true;
  gives.join();
}

// It answers, makes a step that takes longer than one may be silent, and shows that it lives. A
// second process of its rank has been refused, and is no sign that it has ended.
TEST(Membership, ADonorWithALongStepIsWaitedFor) {
  LogLines lines;
  const std::vector<World> worlds = patient_seats(2, lines);
  Membership member(worlds[0], "a", 1), newcomer(worlds[1], "a", 1);
  const Door second(worlds[0], "a");
  second.knock({.life = 8, .donor = 1, .terms = 1});
  second.answer(8, "another process has this rank, and takes part");
  member.set_epoch({.number = 3, .lives = {{0, member.life()}}});
  std::thread donor([&] {
    std::this_thread::sleep_for(2 * worlds[0].timeouts.silent);
    while (!give(member)) {
    }
  });
  EXPECT_EQ(newcomer.take_state().bytes().size(), 3U);
  donor.join();
  EXPECT_THAT(lines.text(), testing::Not(HasSubstr("does not answer")));
}

// Workers 0 and 1 are gone with their machine: they do not answer, and nobody sees that they have
// ended. The others are two of four without the lowest rank, and pause.
TEST(Membership, SurvivorsThatPauseTakeInThoseThatAreStartedAgain) {
  for (const char* scheme : {"cta", "a2cid2"}) {
    SCOPED_TRACE(scheme);
    FragileNetwork network(4);
    LogLines lines;
    const auto pausing = [&] {
      const std::vector<std::string> all = lines.all();
      return std::ranges::count_if(
          all, [](const std::string& line) { return line.find("pauses: it misses") != std::string::npos; });
    };
    std::atomic<int> gone = 0, back = 0;
    std::atomic<std::uint64_t> last = ~std::uint64_t{0};
    flock(4, [&](int i, World& world) {
      world.make_transport = network.transports();
      world.partition = Partition::pause;
      world.timeouts.silent = 2s;
      world.log = lines.log(Level::info);
      const auto store = std::make_shared<LosableStore>(world.store);
      World before = seat_of(world);
      before.store = store;
      const Options options{.topology = "ring", .scheme = {scheme}};
      const auto train = [&](Optimizer& optimizer, const std::atomic<std::uint64_t>& steps) {
        while (optimizer.steps() < steps) {
          optimizer.step();
          std::this_thread::sleep_for(1ms);
        }
      };
      const Tensor x = parameter({4}), y = parameter({4});
      Optimizer first({x}, SGD{}, options, before);
      train(first, 3);
      if (i >= 2) {
        train(first, last);
        return nobody_leaves_yet(first);
      }
      store->is_lost = true;  // so it answers no newcomer
      if (++gone == 2) {
        for (const int survivor : {2, 3}) network.sever(0, survivor), network.sever(1, survivor);
      }
      EXPECT_TRUE(eventually([&] { return pausing() >= 2; }));
      Optimizer again({y}, SGD{}, options, seat_of(world));
      EXPECT_GE(again.steps(), 1U);
      if (++back == 2) last = again.steps() + 5;
      train(again, last);
      nobody_leaves_yet(again);
      EXPECT_THAT(again.statistics().lost, IsEmpty());
    });
    EXPECT_THAT(lines.text(), AllOf(HasSubstr("this worker sees enough of the others again, and goes on"),
                                    HasSubstr("has workers 0, 1, 2, 3")));
  }
}

// Worker 0 cannot meet the others in the new epoch, since it has lost the store. The store comes
// back at its first message, or this worker gives up.
void lose_the_store_in_a_renewal(const std::string& scheme, bool gives_up,
                                 const std::function<void(Optimizer&)>& renew) {
  std::atomic<std::uint64_t> last = ~std::uint64_t{0};
  std::atomic<bool> is_lost = false, is_interrupted = false;
  flock(3, [&](int i, World& world) {
    const auto store = std::make_shared<LosableStore>(world.store);
    world.store = store;
    // As over TCP, it asks the store before it connects.
    world.make_transport = [make = world.make_transport, store](const World& of, const std::string& channel) {
      store->there();
      return make(of, channel);
    };
    world.timeouts.silent = 2s;
    world.interrupted = [&, i] { return i == 0 && is_interrupted; };
    world.log = [&, store](Level, const std::string& line) {
      if (line.starts_with("this worker cannot meet the others"))
        store->is_lost = is_interrupted = gives_up && !line.ends_with("it joins them again");
    };
    const Tensor x = parameter({4});
    const Options options{.topology = "ring", .scheme = {scheme}};
    std::unique_ptr<Optimizer> optimizer;
    const auto start = [&] {
      optimizer.reset();
      world = seat_of(world);
      optimizer = std::make_unique<Optimizer>(std::vector<Tensor>{x}, SGD{}, options, world);
    };
    start();
    optimizer->step();
    if (i == 0) {
      is_lost = store->is_lost = true;
      try {
        while (store->is_lost) renew(*optimizer);
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("this worker cannot meet the others"));
        store->is_lost = is_interrupted = false;
        start();
      }
      last = optimizer->steps() + 5;
    } else if (i == 1) {
      optimizer.reset();
      EXPECT_TRUE(eventually([&] { return is_lost.load(); }));
      start();
    }
    while (optimizer->steps() < last) optimizer->step();
    nobody_leaves_yet(*optimizer);
    EXPECT_THAT(optimizer->statistics().lost, IsEmpty());
  });
}

void one_step(Optimizer& optimizer) { optimizer.step(); }
void average(Optimizer& optimizer) { const Consensus average(optimizer); }

TEST(Membership, AMemberThatLosesTheStoreInARenewalWaitsForIt) {
  lose_the_store_in_a_renewal("cta", false, one_step);
}

// Within an average it ends, and another process takes its rank.
TEST(Membership, AMemberThatGivesUpInARenewalJoinsAgain) {
  lose_the_store_in_a_renewal("cta", true, one_step);
  lose_the_store_in_a_renewal("a2cid2", true, one_step);
  lose_the_store_in_a_renewal("a2cid2", true, average);
}

}  // namespace
}  // namespace starling
