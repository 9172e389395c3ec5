// The exchange when neighbours read each other's memory: the same bits as over TCP, and the
// conserved sum through broken connections.
#include <atomic>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "starling/transport/mapped/mapped.h"
#include "tests/exchange/flock.h"
#include "tests/loopback.h"
#include "tests/refusal.h"

namespace starling {
namespace {

// Workers on threads, each with a transport of its own, like processes.
struct Neighbours : Workers {
  Neighbours(const Schedule& schedule, Wire wire, decltype(&make_mapped_transport) make, int one_in = 1) {
    World world = loopback_world(schedule.workers());
    for (world.rank = 0; world.rank < world.size; ++world.rank)
      workers.push_back(std::make_unique<Worker>(make(world, "test"), schedule, Patience{}, wire, one_in));
    everyone([](Worker& w) { w.begin(); });
  }
  void steps(int n) {
    everyone([n](Worker& w) {
      for (int t = 0; t < n; ++t) w.step();
    });
  }
  // Whether most of their blocks were read in place. Until memory is handed over, blocks go over
  // TCP.
  bool steps_in_place(int n) {
    const auto counted = [&] {
      std::vector<ExchangeStatistics> all;
      for (auto& worker : workers) all.push_back(worker->exchange.statistics());
      return all;
    };
    const auto before = counted();
    steps(n);
    const auto after = counted();
    for (std::size_t i = 0; i < after.size(); ++i) {
      if (after[i].bytes_in_place - before[i].bytes_in_place <=
          (after[i].bytes_sent - before[i].bytes_sent) / 2)
        return false;
    }
    return true;
  }
};

struct Sent {
  Wire wire;
  int one_in;
};
constexpr Sent kWires[] = {{Wire::fp32, 1}, {Wire::bf16, 1}, {Wire::fp16, 1},
                           {Wire::int8, 1}, {Wire::int4, 1}, {Wire::fp32, 3}};

// The error is all that a user may read.
TEST(Exchange, AnotherTokenIsNamedInTheLastLine) {
  World world = loopback_world(2);
  world.timeouts.meet = std::chrono::milliseconds(500);
  const Patience patience{.meet = world.timeouts.meet, .max_wait = {}};
  std::vector<std::unique_ptr<Worker>> workers;
  for (world.rank = 0; world.rank < 2; ++world.rank) {
    world.token = fmt::format("the token of worker {}", world.rank);
    workers.push_back(std::make_unique<Worker>(make_tcp_transport(world, "test"), make_schedule("ring", 2),
                                               patience, Wire::fp32));
  }
  on_threads_of(workers, [](auto& worker) {
    EXPECT_THAT(refusal([&] { worker->exchange.meet(); }),
                testing::EndsWith("is not signed with this worker's token: give all workers the same one, by "
                                  "STARLING_TOKEN_FILE or STARLING_TOKEN)"));
  });
}

// Edges, and a group's parts and means.
TEST(MappedExchange, HasTheBitsOfTheOneOverTcp) {
  for (const char* topology : {"one-peer-exponential", "ring", "complete"}) {
    for (const auto& [wire, one_in] : kWires) {
      SCOPED_TRACE(fmt::format("{} {} one in {}", topology, name_of(wire), one_in));
      const Schedule schedule = make_schedule(topology, 4);
      Neighbours mapped(schedule, wire, make_mapped_transport, one_in),
          tcp(schedule, wire, make_tcp_transport, one_in);
      const double before = mapped.sum();
      int steps = 0;
      EXPECT_TRUE(eventually([&] { return steps += 5, mapped.steps_in_place(5); }));
      tcp.steps(steps);
      for (Neighbours* all : {&mapped, &tcp}) all->everyone([](Worker& w) { w.end(); });
      EXPECT_NEAR(mapped.sum(), before, 1e-2);
      for (int i = 0; i < 4; ++i) {
        for (const int b : {0, 1}) EXPECT_EQ(mapped[i].x[b], tcp[i].x[b]) << "worker " << i << " block " << b;
        const ExchangeStatistics here = mapped[i].exchange.statistics(), there = tcp[i].exchange.statistics();
        EXPECT_EQ(here.aborted + there.aborted, 0U);
        EXPECT_EQ(there.bytes_in_place, 0U);
        EXPECT_NEAR(static_cast<double>(here.payload_sent), static_cast<double>(there.payload_sent),
                    0.02 * static_cast<double>(there.payload_sent) + 5'000);
      }
    }
  }
}

// A block that a worker has voted for stays unchanged until it has mixed it, late, though its
// neighbour goes on.
TEST(MappedExchange, BrokenConnectionsAreMendedAndTheSumIsRestored) {
  Neighbours all(triangle(), Wire::fp32, make_mapped_transport);
  const double before = all.sum();
  std::atomic<bool> ended = false;
  std::thread breaker([&] {
    std::mt19937_64 random(3);
    while (!ended) {
      const int one = static_cast<int>(random() % 3);
      all[one].transport->reset((one + 1) % 3, "because the test wants it");
      std::this_thread::sleep_for(milliseconds(random() % 30));
    }
  });
  // By turns: no worker runs ahead, so none jumps to a round that the others will not have.
  for (int t = 0; t < 300; ++t) {
    for (auto& worker : all.workers) worker->step();
  }
  ended = true;
  breaker.join();
  ASSERT_TRUE(eventually([&] {
    int mixed = 0;
    for (auto& worker : all.workers) mixed += worker->step();
    return mixed == 12;
  }));
  all.everyone([](Worker& w) { w.end(); });
  EXPECT_NEAR(all.sum(), before, 1e-2);
  for (int i = 0; i < 3; ++i) {
    EXPECT_GT(all[i].exchange.statistics().aborted, 0U);
    EXPECT_GT(all[i].exchange.statistics().bytes_in_place, 0U);
  }
}

// A neighbour's invalid grid is refused, as over TCP.
TEST(MappedExchange, AGridThatThereIsNoneOfIsNotMixed) {
  Neighbours all(make_schedule("one-peer-ring", 2), Wire::int8, make_mapped_transport);
  all.steps(10);
  ASSERT_GT(all[1].exchange.statistics().bytes_in_place, 0U);
  EXPECT_EQ(all[0].exchange.statistics().aborted, 0U);
  all[1].lie = 99;
  all.steps(2);  // the first one mixes the earlier blocks
  EXPECT_GE(all[0].exchange.statistics().aborted, 2U);
  EXPECT_THAT(all[0].said(), ::testing::Contains(::testing::HasSubstr("worker 1 sent a damaged block")));
}

}  // namespace
}  // namespace starling
