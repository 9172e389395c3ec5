// random-k: one value in `one_in` is exchanged in a round. Against plain loops in double. Two ends
// never mix with different masks: not after a jump, and not if one of them has another mask.
#include <atomic>

#include <gmock/gmock.h>

#include "starling/transport/tcp/tcp.h"
#include "tests/exchange/flock.h"
#include "tests/loopback.h"

namespace starling {
namespace {

// x_i[c] += Sum_j W_ij (x_j[c] - x_i[c]) if the mask chooses c; over edges, and in groups that take
// their mean.
TEST(RandomK, IsTheMatrixProductWhereTheMaskChooses) {
  constexpr int kRounds = 24;
  for (const char* name : {"ring", "base-2", "base-3", "complete", "alternating-exp-ring"}) {
    for (const int one_in : {2, 5}) {
      const int n = 6;
      const Schedule schedule = make_schedule(name, n, 3);
      Flock flock(schedule, {}, Wire::fp32, one_in);
      std::vector<std::vector<double>> x[2];
      for (std::size_t b = 0; b < 2; ++b) {
        for (int i = 0; i < n; ++i) x[b].emplace_back(flock[i].x[b].begin(), flock[i].x[b].end());
      }
      flock.everyone([](Worker& w) {
        for (int t = 0; t < kRounds; ++t) w.step();
      });
      std::size_t mixed = 0;
      for (std::uint64_t t = 0; t < kRounds; ++t) {
        const std::uint64_t place = t % schedule.rounds.size(), pass = t / schedule.rounds.size();
        for (std::uint32_t b = 0; b < 2; ++b) {
          const Mask mask = Mask::of_round(static_cast<std::uint32_t>(one_in), b, place, pass);
          for (std::size_t c = 0; c < Worker::size; ++c) {
            if (c / 256 % static_cast<std::size_t>(one_in) != mask.turn) continue;
            ++mixed;
            double next[6];
            for (int i = 0; i < n; ++i) {
              const auto k = static_cast<std::size_t>(i);
              next[k] = x[b][k][c];
              for (const Neighbour& j : schedule.at(t).neighbours[k])
                next[k] += j.weight * (x[b][static_cast<std::size_t>(j.rank)][c] - x[b][k][c]);
            }
            for (std::size_t i = 0; i < 6; ++i) x[b][i][c] = next[i];
          }
        }
      }
      EXPECT_NEAR(static_cast<double>(mixed), 2.0 * Worker::size * kRounds / one_in, 2.0 * 256 * kRounds);
      for (std::size_t b = 0; b < 2; ++b) {
        for (int i = 0; i < n; ++i) {
          for (std::size_t c = 0; c < Worker::size; ++c)
            ASSERT_NEAR(flock[i].x[b][c], x[b][static_cast<std::size_t>(i)][c], 5e-6)
                << name << " " << i << " " << c;
        }
      }
      EXPECT_EQ(flock[0].exchange.statistics().aborted, 0U);
    }
  }
}

// A worker that slept is told the others' round and jumps there: its next block has that round's
// mask.
TEST(RandomK, AJumpTakesTheMaskAlong) {
  Flock flock(triangle(), {.max_wait = milliseconds(2000)}, Wire::fp32, 7);
  const double before = flock.sum();
  flock.everyone([](Worker& w) { w.step(); });
  flock.steps_while_2_sleeps();
  std::atomic<bool> stop = false;
  std::thread others([&] {
    while (!stop) flock[0].step(), flock[1].step();
  });
  int mixed = flock[2].step();
  for (int t = 0; t < 20; ++t) mixed = flock[2].step();
  stop = true;
  others.join();
  flock.everyone([](Worker& w) { w.end(); });
  EXPECT_EQ(mixed, 4);
  EXPECT_GT(flock[2].exchange.statistics().skipped_rounds, 10U);
  EXPECT_NEAR(flock.sum(), before, 1e-2);  // with two masks in one exchange it would move
  for (int i = 0; i < 3; ++i)
    EXPECT_THAT(flock[i].said(), testing::Not(testing::Contains(testing::HasSubstr("damaged")))) << i;
}

// Workers that do not agree on the period, so that they differ in most masks; the blocks are of
// equal sizes. (An Optimizer requires equal options. This test covers the case that they differ
// nevertheless.)
TEST(RandomK, BlocksOfAnotherMaskAreRefusedByBothEnds) {
  constexpr int kOneIn = 4;
  constexpr std::size_t kSize = 4 * kOneIn * Mask::kRun;  // the same number for every mask
  for (const int n : {2, 3}) {                            // an edge, and a group
    const Graph graph = make_schedule("complete", n).rounds[0];
    const Schedule once{"once", {graph}}, twice{"twice", {graph, graph}};
    LocalHub hub(n);
    LogLines said;
    std::vector<std::unique_ptr<Exchange>> exchanges;
    std::vector<std::vector<float>> x;
    for (int i = 0; i < n; ++i) {
      exchanges.push_back(std::make_unique<Exchange>(
          hub.endpoint(i), i == 0 ? once : twice, std::vector<std::size_t>{kSize},
          ExchangeOptions{.log = said.log(Level::debug), .contents = {.one_in = kOneIn}}));
      x.emplace_back(kSize, static_cast<float>(i));
    }
    const auto everyone = [&](auto&& f) {
      on_threads(n,
                 [&](int i) { f(*exchanges[static_cast<std::size_t>(i)], x[static_cast<std::size_t>(i)]); });
    };
    everyone([](Exchange& exchange, auto&) { exchange.meet(); });
    int refused = 0;
    for (std::uint64_t t = 0; t < 16; ++t) {
      std::atomic<int> arrivals = 0;
      everyone([&](Exchange& exchange, std::vector<float>& values) {
        write_block(values, exchange.outgoing(0), 0);
        exchange.start(0, true);
        Grid unused(Wire::int8);
        const auto arrived = exchange.finish(0);
        for (const Arrival& a : arrived) {
          EXPECT_EQ(a.theirs.mask, a.mine.mask);
          if (a.rank == 0 || &values == &x[0]) ++arrivals;
        }
        mix_block(values, arrived, unused);
      });
      const bool agree = Mask::of_round(kOneIn, 0, 0, t) == Mask::of_round(kOneIn, 0, t % 2, t / 2);
      EXPECT_EQ(arrivals > 0, agree) << "round " << t;
      if (!agree) ++refused;
    }
    EXPECT_GT(refused, 4);
    EXPECT_LT(refused, 16);
    double sum = 0;
    for (const auto& values : x) sum = std::accumulate(values.begin(), values.end(), sum);
    EXPECT_NEAR(sum, n * (n - 1) / 2.0 * static_cast<double>(kSize), 1e-1);
    EXPECT_THAT(said.all(), testing::Contains(testing::HasSubstr("sent a damaged block 0")));
  }
}

// Blocks so small that a mask chooses none of their values in most rounds, over TCP too.
TEST(RandomK, SmallBlocksCommitAndComeTogether) {
  const std::vector<std::size_t> sizes{1, 7, 300, 1000};
  for (const char* topology : {"ring", "complete"}) {
    for (const bool tcp : {false, true}) {
      SCOPED_TRACE(std::string(topology) + (tcp ? " over TCP" : ""));
      const int n = 4;
      const Schedule schedule = make_schedule(topology, n);
      LocalHub hub(n);
      World world = loopback_world(n);
      std::vector<std::unique_ptr<Exchange>> exchanges;
      for (world.rank = 0; world.rank < n; ++world.rank) {
        exchanges.push_back(
            std::make_unique<Exchange>(tcp ? make_tcp_transport(world, "test") : hub.endpoint(world.rank),
                                       schedule, sizes, ExchangeOptions{.contents = {.one_in = 3}}));
      }
      on_threads(n, [&](int rank) {
        Exchange& exchange = *exchanges[static_cast<std::size_t>(rank)];
        exchange.meet();
        std::vector<std::vector<float>> x;
        for (const std::size_t size : sizes) x.emplace_back(size, static_cast<float>(rank));
        Grid unused(Wire::int8);
        for (int t = 0; t < 90; ++t) {
          for (std::size_t b = 0; b < x.size(); ++b) {
            write_block(x[b], exchange.outgoing(static_cast<int>(b)), 0);
            exchange.start(static_cast<int>(b), true);
          }
          for (std::size_t b = 0; b < x.size(); ++b)
            mix_block(x[b], exchange.finish(static_cast<int>(b)), unused);
        }
        for (const auto& block : x) {
          for (const float value : block) ASSERT_NEAR(value, 1.5, 1e-4);
        }
        EXPECT_EQ(exchange.statistics().aborted, 0U);
      });
    }
  }
}

}  // namespace
}  // namespace starling
