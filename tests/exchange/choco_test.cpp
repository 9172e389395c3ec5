// CHOCO's exchange: the copies that both ends of an edge keep, over the transports and without an
// optimizer. The test checks directly that both ends have the same bits, whatever aborts: this
// implies that the sum is kept.
#include <atomic>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "starling/exchange/replicas.h"
#include "starling/transport/mapped/mapped.h"
#include "starling/transport/tcp/tcp.h"
#include "tests/exchange/flock.h"
#include "tests/loopback.h"
#include "tests/mixed.h"

namespace starling {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

// One block per worker, which learns its own values at every step.
struct Sparse {
  Sparse(std::unique_ptr<Transport> over, const Schedule& schedule, int one_in, double gamma,
         std::size_t size, Patience patience = {})
      : rank(over->rank()),
        top{static_cast<std::uint32_t>(one_in)},
        gamma(gamma),
        x(size, 0.5F),
        random(static_cast<std::uint64_t>(rank) + 1),
        exchange(std::move(over), schedule, {size},
                 {.patience = patience,
                  .log = lines.log(Level::debug),
                  .contents = {.one_in = one_in, .chooser = Chooser::sender, .may_be_empty = true}}) {
    std::vector<int> neighbours;
    for (const Neighbour& j : schedule.rounds.front().neighbours[static_cast<std::size_t>(rank)])
      neighbours.push_back(j.rank);
    const std::span<const float> whole(x);
    replicas.begin(neighbours, {&whole, 1});
  }
  void learn() {
    const double before = sum();
    for (float& value : x) value += change(random);
    learned += sum() - before;
  }
  // The part of x that comes from mixing alone.
  double kept() const { return sum() - learned; }
  void send() {
    // In two pieces, like the parameters of a block.
    const std::span<const float> pieces[]{std::span(x).first(x.size() / 3),
                                          std::span(x).subspan(x.size() / 3)};
    const Outgoing outgoing = exchange.outgoing(0);
    if (silent) {
      exchange.leave_empty(0);
    } else {
      replicas.write(pieces, top, outgoing.values, room);
    }
    if (tamper) tamper(static_cast<std::uint32_t*>(outgoing.values));
    exchange.start(0, true);
  }
  // Returns how many swaps were mixed.
  int combine() {
    const auto finished = exchange.finish(0);
    std::vector<Arrival> swaps(finished.begin(), finished.end());
    std::ranges::stable_sort(swaps, {}, &Arrival::round);
    for (const Arrival& swap : swaps) {
      const Arrival mix = replicas.take(swap, top, gamma);
      const kernels::Mix one{mix.weight, mix.theirs.values(), mix.mine.values()};
      kernels::update(kernels::SgdStep{}, {&one, 1}, x.data(), nullptr, {}, {}, x.size());
    }
    return static_cast<int>(swaps.size());
  }
  int step() {
    send();
    return combine();
  }
  double sum() const { return std::accumulate(x.begin(), x.end(), 0.0); }
  std::vector<std::string> said() { return lines.all(); }
  const Replicas::Edge& edge(int other) const {
    return *std::ranges::find(replicas.edges, other, &Replicas::Edge::rank);
  }

  const int rank;
  const TopK top;
  const double gamma;
  std::vector<float> x;
  Replicas replicas;
  std::vector<std::uint32_t> room;
  std::mt19937_64 random;
  std::normal_distribution<float> change;
  double learned = 0;
  std::function<void(std::uint32_t*)> tamper{};
  bool silent = false;  // sends nothing
  LogLines lines;
  Exchange exchange;
};

enum class Over { threads, tcp, mapped };

struct Sparses : OnThreads<Sparse> {
  Sparses(const Schedule& schedule, int one_in, double gamma, std::size_t size, Over over = Over::threads,
          Patience patience = {})
      : hub(schedule.workers()) {
    World world = loopback_world(schedule.workers());
    for (world.rank = 0; world.rank < world.size; ++world.rank) {
      auto transport = over == Over::tcp      ? make_tcp_transport(world, "test")
                       : over == Over::mapped ? make_mapped_transport(world, "test")
                                              : hub.endpoint(world.rank);
      workers.push_back(
          std::make_unique<Sparse>(std::move(transport), schedule, one_in, gamma, size, patience));
    }
    everyone([](Sparse& w) { w.exchange.meet(); });
  }
  void learn_and_step() {
    everyone([](Sparse& w) {
      w.learn();
      w.step();
    });
  }
  // How far mixing has moved the sum.
  double drift() const {
    double sum = 0;
    for (const auto& worker : workers) sum += worker->kept() - 0.5 * static_cast<double>(worker->x.size());
    return sum;
  }
  // Compares to the bit.
  void expect_both_ends_agree(const Schedule& schedule) {
    for (int i = 0; i < schedule.workers(); ++i) {
      for (const Neighbour& j : schedule.rounds.front().neighbours[static_cast<std::size_t>(i)])
        EXPECT_EQ((*this)[i].edge(j.rank).mine, (*this)[j.rank].edge(i).theirs) << i << " at " << j.rank;
    }
  }
  LocalHub hub;
};

// x_i <- h_i + gamma (s_i - x^_i), with one x^ per worker and s_i = Sum_j W_ij x^_j, as in the
// paper.
TEST(Choco, IsItsEquation) {
  constexpr std::size_t kSize = 3001;
  constexpr int kSteps = 12;
  struct Case {
    const char* topology;
    int n, one_in;
    Over over;
  };
  for (const auto& [topology, n, one_in, over] : {Case{"ring", 5, 4, Over::threads},
                                                  {"complete", 4, 16, Over::threads},
                                                  {"ring", 3, 7, Over::tcp},
                                                  {"ring", 3, 7, Over::mapped},
                                                  {"ring", 4, 1, Over::mapped},
                                                  // Three values.
                                                  {"ring", 4, 1024, Over::threads}}) {
    SCOPED_TRACE(fmt::format("{} {} one in {}", topology, n, one_in));
    const double gamma = 0.4;
    const Schedule schedule = make_schedule(topology, n);
    const Graph& graph = schedule.rounds.front();
    const auto N = static_cast<std::size_t>(n);
    Sparses workers(schedule, one_in, gamma, kSize, over);
    std::vector<std::vector<double>> x(N, std::vector<double>(kSize, 0.5)), copy = x;
    std::vector<std::mt19937_64> random;
    std::vector<std::normal_distribution<float>> change(N);
    for (std::size_t i = 0; i < N; ++i) random.emplace_back(i + 1);
    for (int t = 0; t < kSteps; ++t) {
      workers.learn_and_step();
      for (std::size_t i = 0; i < N; ++i) {
        for (double& value : x[i]) value += change[i](random[i]);
        std::vector<std::size_t> order(kSize);
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::ranges::stable_sort(order, std::greater(),
                                 [&](std::size_t c) { return std::abs(x[i][c] - copy[i][c]); });
        order.resize((kSize + static_cast<std::size_t>(one_in) - 1) / static_cast<std::size_t>(one_in));
        for (const std::size_t c : order) copy[i][c] += x[i][c] - copy[i][c];
      }
      for (int i = 0; i < n; ++i) {
        const auto k = static_cast<std::size_t>(i);
        for (std::size_t c = 0; c < kSize; ++c)
          x[k][c] += gamma * (mixed(graph, i, [&](std::size_t j) { return copy[j][c]; }) - copy[k][c]);
      }
    }
    for (int i = 0; i < n; ++i) {
      const auto k = static_cast<std::size_t>(i);
      for (std::size_t c = 0; c < kSize; ++c)
        ASSERT_NEAR(workers[i].x[c], x[k][c], 2e-5) << "worker " << i << " value " << c;
      for (const Replicas::Edge& edge : workers[i].replicas.edges) {
        for (std::size_t c = 0; c < kSize; ++c) ASSERT_NEAR(edge.mine[c], copy[k][c], 2e-5);
      }
      EXPECT_EQ(workers[i].exchange.statistics().aborted, 0U);
    }
    workers.expect_both_ends_agree(schedule);
  }
}

// With all values and gamma 1 it is ATC: x <- W h.
TEST(Choco, WithAllValuesItIsGossip) {
  const Schedule schedule = make_schedule("ring", 5);
  Sparses workers(schedule, 1, 1, 1000);
  workers.everyone([](Sparse& w) { w.learn(); });
  std::vector<std::vector<float>> h;
  for (int i = 0; i < 5; ++i) h.push_back(workers[i].x);
  workers.everyone([](Sparse& w) { EXPECT_EQ(w.step(), 2); });
  for (int i = 0; i < 5; ++i) {
    for (std::size_t c = 0; c < 1000; ++c) {
      const double Wh = mixed(schedule.rounds.front(), i, [&](std::size_t j) { return h[j][c]; });
      ASSERT_NEAR(workers[i].x[c], Wh, 1e-6);
    }
  }
}

TEST(Choco, SendsIndicesAndValuesOfOneInSoMany) {
  const std::size_t size = 100'000;
  const Schedule schedule = make_schedule("ring", 4);
  double all = 0;
  for (const auto& [one_in, share] : {std::pair{1, 1.0}, {2, 1.0}, {8, 0.25}, {100, 0.02}}) {
    Sparses workers(schedule, one_in, 0.1, size);
    for (int t = 0; t < 10; ++t) workers.learn_and_step();
    workers.everyone([](Sparse& w) { w.exchange.average({}); });  // no worker has more to send
    const auto sent = static_cast<double>(workers[0].exchange.statistics().payload_sent);
    if (one_in == 1) all = sent;
    EXPECT_NEAR(sent / all, share, 0.005) << one_in;
    EXPECT_GE(all, 10 * 2 * 4.0 * static_cast<double>(size));
  }
}

// Large blocks, small ones, and some that their neighbours read in place.
TEST(Choco, AnEmptyBlockKeepsWhatIsKnownOfItsSenderAndHasNoBytes) {
  const Schedule schedule = make_schedule("ring", 4);
  for (const Over over : {Over::threads, Over::tcp, Over::mapped}) {
    for (const auto& [size, one_in] : {std::pair{90'000, 4}, {90'000, 1}, {100, 4}}) {
      SCOPED_TRACE(fmt::format("over {}, {} values, one in {}", static_cast<int>(over), size, one_in));
      Sparses workers(schedule, one_in, 0.3, static_cast<std::size_t>(size), over);
      std::vector<std::size_t> sent(4);  // blocks
      for (int t = 0; t < 12; ++t) {
        std::vector<std::vector<float>> known;
        for (int i = 0; i < 4; ++i) {
          workers[i].silent = t == 5 || (t + i) % 3 == 0;
          if (!workers[i].silent) sent[static_cast<std::size_t>(i)] += 2;
          known.push_back(workers[i].replicas.edges[0].mine);
        }
        workers.learn_and_step();
        for (int i = 0; i < 4; ++i) {
          const bool same = workers[i].replicas.edges[0].mine == known[static_cast<std::size_t>(i)];
          EXPECT_EQ(same, workers[i].silent) << "worker " << i << " round " << t;
        }
      }
      workers.expect_both_ends_agree(schedule);
      EXPECT_NEAR(workers.drift(), 0, 1e-2);
      workers.everyone([](Sparse& w) { w.exchange.average({}); });  // no worker has more to send
      for (int i = 0; i < 4; ++i) {
        EXPECT_EQ(workers[i].exchange.statistics().committed, 24U);
        EXPECT_EQ(workers[i].exchange.statistics().payload_sent,
                  sent[static_cast<std::size_t>(i)] * 4 * workers[i].top.words(workers[i].x.size()));
      }
    }
  }
}

// When the connection breaks, a swap is aborted, or both have mixed it. Worker 2 is not touched. In
// some rounds a worker sends nothing.
TEST(Choco, ABrokenConnectionIsMendedAndBothEndsAgree) {
  const Schedule schedule = make_schedule("ring", 3);
  Sparses workers(schedule, 8, 0.3, 20'000);
  const auto step = [&] {
    int mixed = 0;
    for (int i = 0; i < 3; ++i) workers[i].learn(), workers[i].send();
    for (int i = 0; i < 3; ++i) mixed += workers[i].combine();
    return mixed;
  };
  for (int t = 0; t < 90; ++t) {
    // Before the votes or after them, depending on the threads.
    if (t % 3 == 0) workers.hub.sever(0, 1);
    if (t % 3 == 2) workers.hub.mend(0, 1);
    for (int i = 0; i < 3; ++i) workers[i].silent = (t / 3 + i) % 4 == 0;
    step();
  }
  workers.hub.mend(0, 1);
  ASSERT_TRUE(eventually([&] { return step() == 6; }));
  workers.expect_both_ends_agree(schedule);
  EXPECT_NEAR(workers.drift(), 0, 1e-2);
  EXPECT_GT(workers[0].exchange.statistics().aborted, 10U);
  const auto of = [&](int i) { return workers[i].exchange.statistics(); };
  EXPECT_EQ(of(0).aborted - of(0).late, of(1).aborted - of(1).late);
}

// One end has committed, and the other learns of it in a later round: it takes and mixes the older
// swap before the newer one.
TEST(Choco, WhatIsMendedLateIsTakenInItsOrder) {
  const Schedule schedule = make_schedule("ring", 2);
  Sparses workers(schedule, 2, 0.3, 5'000, Over::threads, {.silent = std::chrono::minutes(20)});
  workers.everyone([](Sparse& w) { w.learn(); });
  const auto sent = [&] { return workers[1].exchange.statistics().bytes_sent; };
  const std::uint64_t before = sent();
  workers[1].send();
  ASSERT_TRUE(eventually([&] { return sent() - before > 5'000 * sizeof(float); }));
  workers.hub.delay(1, 0, std::chrono::minutes(20));  // its vote, not its block
  workers[0].send();
  EXPECT_EQ(workers[1].combine(), 1);
  workers.hub.sever(0, 1);
  EXPECT_EQ(workers[0].combine(), 0);
  EXPECT_NE(workers[1].edge(0).mine, workers[0].edge(1).theirs);
  workers.hub.delay(1, 0, {});
  workers.hub.mend(0, 1);
  ASSERT_TRUE(eventually([&] { return workers[0].exchange.statistics().late == 1; }));
  std::atomic<int> mixed = 0;
  workers.everyone([&](Sparse& w) { w.learn(), mixed += w.step(); });
  EXPECT_EQ(mixed, 3);
  workers.expect_both_ends_agree(schedule);
  EXPECT_NEAR(workers.drift(), 0, 1e-2);
}

TEST(Choco, ADamagedBlockIsNotTakenByEitherEnd) {
  const Schedule schedule = make_schedule("ring", 3);
  Sparses workers(schedule, 4, 0.3, 5'000);
  workers.learn_and_step();
  workers.hub.corrupt_next(1, 2);
  workers.learn_and_step();
  EXPECT_EQ(workers[1].exchange.statistics().aborted, 1U);
  EXPECT_EQ(workers[2].exchange.statistics().aborted, 1U);
  EXPECT_EQ(workers[0].exchange.statistics().aborted, 0U);
  EXPECT_NE(workers[1].edge(0).mine, workers[1].edge(2).mine);
  workers.expect_both_ends_agree(schedule);
  // Values that the edge has missed are sent later.
  for (int t = 0; t < 8; ++t) workers.everyone([](Sparse& w) { w.step(); });
  EXPECT_EQ(workers[1].edge(0).mine, workers[1].edge(2).mine);
  workers.expect_both_ends_agree(schedule);
  EXPECT_NEAR(workers.drift(), 0, 1e-2);
}

// Intact frames of a neighbour with a wrong choice, also in its own memory.
TEST(Choco, IndicesThatAreOutOfRangeTwiceOrInDisorderAreRefused) {
  constexpr std::size_t kSize = 5000, k = 1250;  // smaller blocks go with their frames
  const Schedule schedule = make_schedule("ring", 3);
  for (const Over over : {Over::threads, Over::mapped}) {
    Sparses workers(schedule, 4, 0.3, kSize, over);
    if (over == Over::mapped) {
      ASSERT_TRUE(eventually([&] {
        const std::uint64_t before = workers[1].exchange.statistics().bytes_in_place;
        workers.learn_and_step();
        // To both neighbours.
        return workers[1].exchange.statistics().bytes_in_place - before == 2 * 8 * k;
      }));
    }
    std::vector<std::function<void(std::uint32_t*)>> lies{
        [](std::uint32_t* indices) { indices[k - 1] = kSize; },
        [](std::uint32_t* indices) { indices[k - 1] = 0x7f7fffff; },
        [](std::uint32_t* indices) { indices[3] = indices[4]; },
        [](std::uint32_t* indices) { std::swap(indices[0], indices[k - 1]); }};
    // The first value is not a number: nothing checks a block that is read in place.
    if (over == Over::threads) lies.emplace_back([](std::uint32_t* indices) { indices[k] = 0x7fc00000; });
    std::uint64_t aborted = 0;
    for (const auto& lie : lies) {
      workers[1].tamper = lie;
      workers.learn_and_step();
      ++aborted;
      EXPECT_EQ(workers[0].exchange.statistics().aborted, aborted);
      EXPECT_EQ(workers[2].exchange.statistics().aborted, aborted);
      EXPECT_EQ(workers[1].exchange.statistics().aborted, 2 * aborted);
      workers.expect_both_ends_agree(schedule);
    }
    EXPECT_THAT(workers[0].said(), Contains(HasSubstr("worker 1 sent a damaged block 0")));
    EXPECT_THAT(workers[1].said(), Not(Contains(HasSubstr("damaged"))));
    workers[1].tamper = nullptr;
    workers.learn_and_step();
    EXPECT_EQ(workers[0].exchange.statistics().aborted, aborted);
    EXPECT_NEAR(workers.drift(), 0, 1e-2);
    // No worker leaves before the others are done.
    workers.everyone([](Sparse& w) { w.exchange.average({}); });
  }
}

// A worker that chooses another number of values, or chooses none.
TEST(Choco, BlocksOfAnotherCountAreRefused) {
  const Schedule schedule = make_schedule("ring", 2);
  LocalHub hub(2);
  for (const int other : {3, 5, 1}) {
    Sparse four(hub.endpoint(0), schedule, 4, 0.3, 1000),
        differs(hub.endpoint(1), schedule, other, 0.3, 1000);
    const auto both = [&](auto&& f) {
      std::thread thread([&] { f(differs); });
      f(four);
      thread.join();
    };
    both([](Sparse& w) { w.exchange.meet(); });
    both([](Sparse& w) {
      w.learn();
      EXPECT_EQ(w.step(), 0);
    });
    // The first to see it tells the other, which need not check.
    std::vector<std::string> said = four.said();
    for (const std::string& line : differs.said()) said.push_back(line);
    EXPECT_THAT(said, Contains(HasSubstr("sent a damaged block 0")));
    both([](Sparse& w) { w.exchange.average({}); });  // neither leaves before the other has checked
  }
}

TEST(Choco, ADeadNeighbourTakesNothingAlong) {
  const Schedule schedule = make_schedule("ring", 3);
  Sparses workers(schedule, 4, 0.3, 5'000);
  for (int t = 0; t < 5; ++t) workers.learn_and_step();
  EXPECT_NEAR(workers.drift(), 0, 1e-2);
  workers.hub.kill(2);
  const double before = workers[0].kept() + workers[1].kept();
  for (int t = 0; t < 20; ++t) {
    std::thread other([&] { workers[1].learn(), workers[1].step(); });
    workers[0].learn(), workers[0].step();
    other.join();
  }
  EXPECT_NEAR(workers[0].kept() + workers[1].kept(), before, 1e-2);
  EXPECT_EQ(workers[0].edge(1).mine, workers[1].edge(0).theirs);
  EXPECT_EQ(workers[0].edge(1).theirs, workers[1].edge(0).mine);
  EXPECT_EQ(workers[0].exchange.lost(), std::set<int>{2});
}

// The others go on without a sleeping worker. It jumps to their round, and the values that its
// edges missed are sent.
TEST(Choco, AWorkerThatSleptIsBackWithTheSameCopies) {
  const Schedule schedule = make_schedule("ring", 3);
  Sparses workers(schedule, 4, 0.3, 5'000, Over::threads, {.max_wait = milliseconds(500)});
  for (int t = 0; t < 3; ++t) workers.learn_and_step();
  const auto two = [&] {
    for (int i : {0, 1}) workers[i].learn(), workers[i].send();
    for (int i : {0, 1}) workers[i].combine();
  };
  workers.hub.pause(2);
  for (int t = 0; t < 15; ++t) two();
  workers.hub.resume(2);
  std::atomic<bool> stop = false;
  std::thread others([&] {
    // Slow enough for worker 2 to come back; otherwise it would be behind again each time.
    while (!stop) {
      two();
      std::this_thread::sleep_for(milliseconds(20));
    }
  });
  EXPECT_TRUE(eventually([&] {
    workers[2].learn();
    return workers[2].step() == 2;
  }));
  stop = true;
  others.join();
  EXPECT_TRUE(eventually([&] {
    std::atomic<int> mixed = 0;
    workers.everyone([&](Sparse& w) { w.learn(), mixed += w.step(); });
    return mixed == 6;
  }));
  EXPECT_GT(workers[2].exchange.statistics().skipped_rounds, 5U);
  workers.expect_both_ends_agree(schedule);
  EXPECT_NEAR(workers.drift(), 0, 1e-2);
}

}  // namespace
}  // namespace starling
