// The exact average: its arithmetic, and a seeded schedule fuzzer over agreement, breaks and
// deaths.
#include "starling/exchange/average.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace starling {
namespace {

using Bytes = AverageActions::Bytes;

Bytes pack(double x) {
  std::vector<std::byte> bytes(sizeof x);
  std::memcpy(bytes.data(), &x, sizeof x);
  return std::make_shared<const std::vector<std::byte>>(std::move(bytes));
}
double unpack(const std::vector<std::byte>& bytes) {
  double x = 0;
  std::memcpy(&x, bytes.data(), sizeof x);
  return x;
}
std::vector<std::byte> mix(const std::vector<std::byte>& mine, std::span<const Average::Share> shares) {
  double x = unpack(mine);
  const double x0 = x;
  for (const auto& [weight, bytes] : shares) x += weight * (unpack(*bytes) - x0);
  return *pack(x);
}

// n workers. Messages between two workers keep their order; everything else is random.
struct World {
  struct Worker final : AverageActions {
    Worker(World& world, int rank) : world(world), rank(rank), average(rank, *this) {}
    void post(int to, std::function<void(Worker&)> message) {
      if (world.linked(rank, to)) world.queues[{rank, to}].push_back(std::move(message));
    }
    void send_join(int to, AverageId id, std::uint32_t attempt, const std::set<int>& who) override {
      post(to, [from = rank, id, attempt, who](Worker& w) { w.average.joined(from, id, attempt, who); });
    }
    void send_share(int to, AverageId id, std::uint32_t attempt, std::uint32_t step, Bytes share) override {
      post(to, [from = rank, id, attempt, step, share](Worker& w) {
        w.average.share(from, id, attempt, step, share);
      });
    }
    void send_done(int to, AverageId id, std::uint32_t attempt, bool ended) override {
      post(to, [from = rank, id, attempt, ended](Worker& w) { w.average.done(from, id, attempt, ended); });
    }
    void send_quit(int to, AverageId id) override {
      post(to, [from = rank, id](Worker& w) { w.average.has_quit(from, id); });
    }
    void averaged(Bytes values, const std::set<int>& participants) override {
      results.emplace_back(unpack(*values), participants);
    }
    World& world;
    const int rank;
    Average average;
    std::vector<double> x;       // of each average; they follow one another
    std::set<std::size_t> quit;  // which averages
    std::vector<AverageId> ids;  // of its averages
    bool alive = true;
    std::set<int> gone;
    std::vector<std::pair<double, std::set<int>>> results;
  };

  // parts: averages of each operation.
  World(int n, std::mt19937_64& random, int averages = 1, int parts = 1) : random(random) {
    for (int i = 0; i < n; ++i) {
      workers.push_back(std::make_unique<Worker>(*this, i));
      for (int k = 0; k < averages; ++k) {
        workers.back()->x.push_back(std::normal_distribution<double>()(random));
        workers.back()->ids.push_back(
            {static_cast<std::uint64_t>(1 + k / parts), static_cast<std::uint16_t>(k % parts)});
      }
    }
  }
  bool linked(int i, int j) const {
    return at(i).alive && at(j).alive && !broken.contains(std::minmax(i, j));
  }
  Worker& at(int i) const { return *workers[static_cast<std::size_t>(i)]; }
  std::size_t pick(std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); }
  bool chance(double p) { return std::bernoulli_distribution(p)(random); }

  void begin(Worker& worker) {
    std::set<int> there;
    for (const auto& other : workers) {
      if (!worker.gone.contains(other->rank)) there.insert(other->rank);
    }
    const std::size_t now = worker.results.size();
    worker.average.begin(worker.ids.at(now), pack(worker.x.at(now)), there, mix);
  }
  bool event(double p_break, double p_death, double p_quit = 0, double p_silent = 0) {
    std::vector<std::function<void()>> events;
    for (const auto& w : workers) {
      Worker& worker = *w;
      if (!worker.alive) continue;
      const std::size_t now = worker.results.size();
      if (!worker.average.running() && now < worker.x.size()) events.push_back([&] { begin(worker); });
      if (chance(p_death)) events.push_back([&] { worker.alive = false; });
      if (worker.average.running() && chance(p_quit))
        events.push_back([&, now] { worker.quit.insert(now), worker.average.quit(); });
      for (const auto& o : workers) {
        Worker& other = *o;
        if (&other == &worker) continue;
        if (chance(p_silent)) events.push_back([&] { worker.average.gone(other.rank); });
        auto& queue = queues[{other.rank, worker.rank}];
        if (!queue.empty()) {
          events.push_back([&worker, &queue] {
            auto message = std::move(queue.front());
            queue.pop_front();
            message(worker);
          });
        } else if (!other.alive && !worker.gone.contains(other.rank)) {
          events.push_back([&] { worker.gone.insert(other.rank), worker.average.gone(other.rank); });
        }
        if (!other.alive || worker.rank > other.rank) continue;
        const std::pair<int, int> link = std::minmax(worker.rank, other.rank);
        if (broken.contains(link)) {
          events.push_back([this, link] { mend(link.first, link.second); });
        } else if (chance(p_break)) {
          events.push_back([this, link] {
            broken.insert(link);
            for (const auto& [a, b] :
                 std::initializer_list<std::pair<int, int>>{link, {link.second, link.first}}) {
              queues[{a, b}].resize(pick(queues[{a, b}].size() + 1));  // the rest is lost
            }
          });
        }
      }
    }
    if (events.empty()) return false;
    events[pick(events.size())]();
    return true;
  }
  void mend(int i, int j) {
    for (const auto& [a, b] : {std::pair{i, j}, std::pair{j, i}}) {
      while (!queues[{a, b}].empty()) {  // messages before the break were seen
        auto message = std::move(queues[{a, b}].front());
        queues[{a, b}].pop_front();
        message(at(b));
      }
      at(b).average.trouble(a);
    }
    broken.erase(std::minmax(i, j));
    for (const auto& [a, b] : {std::pair{i, j}, std::pair{j, i}}) at(a).average.up(b);
  }

  void deliver_all() {
    for (bool more = true; more;) {
      more = false;
      for (auto& [edge, queue] : queues) {
        if (queue.empty()) continue;
        auto message = std::move(queue.front());
        queue.pop_front();
        message(at(edge.second));
        more = true;
      }
    }
  }

  std::mt19937_64& random;
  std::vector<std::unique_ptr<Worker>> workers;
  std::map<std::pair<int, int>, std::deque<std::function<void(Worker&)>>> queues;
  std::set<std::pair<int, int>> broken;
};

void run(int n, std::uint64_t seed, double p_break, double p_death, double p_quit = 0, double p_silent = 0) {
  SCOPED_TRACE("n " + std::to_string(n) + ", seed " + std::to_string(seed));
  constexpr int kInARow = 3;
  std::mt19937_64 random(seed);
  const int parts = 1 + static_cast<int>(seed % kInARow);
  World world(n, random, kInARow, parts);
  for (int k = 0; k < kInARow * 200; ++k) world.event(p_break, p_death, p_quit, p_silent);
  for (int k = 0; k < 100000 && world.event(0, 0); ++k) {
  }
  for (std::size_t k = 0; k < kInARow; ++k) {
    std::optional<std::set<int>> agreed;
    for (const auto& worker : world.workers) {
      if (!worker->alive) continue;
      ASSERT_LT(k, worker->results.size()) << "worker " << worker->rank << " hangs";
      const auto& [value, participants] = worker->results[k];
      if (participants.empty()) {
        ASSERT_TRUE(p_quit > 0 || p_silent > 0);
        ASSERT_EQ(value, worker->x[k]);
        continue;
      }
      ASSERT_TRUE(participants.contains(worker->rank) && !worker->quit.contains(k));
      for (const int rank : participants) {
        if (!world.at(rank).alive) continue;
        const std::set<int>& theirs = world.at(rank).results.at(k).second;
        ASSERT_TRUE(theirs.empty() || theirs == participants);
      }
      if (p_silent == 0) {
        if (!agreed) agreed = participants;
        ASSERT_EQ(participants, *agreed);
      }
      double mean = 0;
      for (const int rank : participants)
        mean += world.at(rank).x[k] / static_cast<double>(participants.size());
      ASSERT_NEAR(value, mean, 1e-12);
      if (p_death == 0 && p_quit == 0) {
        ASSERT_EQ(participants.size(), world.workers.size());
      }
    }
  }
}

TEST(Average, IsExactForEveryNumberOfWorkers) {
  for (int n = 1; n <= 17; ++n) run(n, 1, 0, 0);
}

// The number of seeds of a fuzzer: see CMakeLists.txt and scripts/sanitize.
std::uint64_t seeds() {
  const char* const runs = std::getenv("STARLING_FUZZ_RUNS");
  return runs == nullptr ? 1000 : std::strtoull(runs, nullptr, 10);
}

void fuzz(double p_break, double p_death, double p_quit = 0, double p_silent = 0) {
  for (std::uint64_t seed = 1; seed <= seeds() && !testing::Test::HasFatalFailure(); ++seed)
    run(2 + static_cast<int>(seed % 5), seed, p_break, p_death, p_quit, p_silent);
}

TEST(Average, SurvivesBrokenConnections) { fuzz(0.02, 0); }

TEST(Average, AfterDeathsItIsTheSurvivorsAndAllOfThemAgree) { fuzz(0.005, 0.005); }

TEST(Average, WhoeverQuitsKeepsItsOwnValueAndTheOthersAgree) { fuzz(0.005, 0.002, 0.01); }

// Silence may be an error: the worker lives, and goes on from its own value.
TEST(Average, AfterSilencesNobodyHangsAndMembersAgree) { fuzz(0.005, 0.002, 0, 0.003); }

TEST(Average, OneThatIsStruckOutKeepsItsOwnValue) {
  std::mt19937_64 random(1);
  World world(3, random, 5, 2);
  world.begin(world.at(0));
  world.begin(world.at(1));
  world.at(0).average.gone(2);  // silent for too long
  world.at(1).average.gone(2);
  world.deliver_all();
  ASSERT_TRUE(world.at(0).results.size() == 1 && world.at(1).results.size() == 1);
  EXPECT_EQ(world.at(0).results[0].second, (std::set{0, 1}));
  world.begin(world.at(2));  // it wakes
  world.deliver_all();
  ASSERT_EQ(world.at(2).results.size(), 1U);
  EXPECT_TRUE(world.at(2).results[0].second.empty());
  EXPECT_EQ(world.at(2).results[0].first, world.at(2).x[0]);
  const auto results = [&] {
    std::vector<std::set<int>> last;
    for (const auto& worker : world.workers) last.push_back(worker->results.back().second);
    return last;
  };
  // It is no member of the operation's other parts, and need not ask for them.
  world.begin(world.at(0));
  world.begin(world.at(1));
  world.deliver_all();
  EXPECT_EQ(world.at(1).results.size(), 2U);
  world.begin(world.at(2));
  EXPECT_EQ(results(), (std::vector<std::set<int>>{{0, 1}, {0, 1}, {}}));
  // Alone it is no survivor of the others.
  world.at(2).gone = {0, 1};
  world.at(2).ids = {{1, 0}, {1, 1}, {2, 0}, {3, 0}};
  world.begin(world.at(2));
  EXPECT_EQ(world.at(2).results.back().second, std::set<int>());
  world.at(2).gone = {};
  for (const int rank : {0, 1}) {
    world.at(rank).average.has_quit(2, {2, 0});
    world.at(rank).ids = {{1, 0}, {1, 1}, {2, 0}, {3, 0}};
    world.begin(world.at(rank));
  }
  world.deliver_all();
  EXPECT_EQ(results(), (std::vector<std::set<int>>{{0, 1}, {0, 1}, {}}));
  // The next operation is all workers'.
  for (const int rank : {1, 2, 0}) world.begin(world.at(rank));
  world.deliver_all();
  EXPECT_EQ(results(), (std::vector<std::set<int>>{{0, 1, 2}, {0, 1, 2}, {0, 1, 2}}));
}

// Those that were away go on if they are most of the last average's, less the ones that have ended.
TEST(Average, TheMostOfThoseThatMayStillBeThereAreSurvivors) {
  struct Case {
    std::set<int> here, ended;
    bool paused, survive;
  };
  for (const auto& [here, ended, paused, survive] : std::vector<Case>{{{1, 2, 3}, {}, false, true},
                                                                      {{2, 3}, {}, false, false},
                                                                      {{2, 3}, {}, true, false},
                                                                      {{0, 1}, {}, false, false},
                                                                      {{0, 1}, {}, true, true},
                                                                      {{2, 3}, {0}, false, false},
                                                                      {{2, 3}, {0}, true, true},
                                                                      {{2, 3}, {0, 1}, true, true},
                                                                      {{2}, {0, 1}, false, false},
                                                                      {{2}, {0, 1}, true, true},
                                                                      {{3}, {0, 1}, true, false},
                                                                      {{3}, {0, 1, 2}, false, false},
                                                                      {{3}, {0, 1, 2}, true, true}}) {
    SCOPED_TRACE(testing::PrintToString(here) + " without " + testing::PrintToString(ended) +
                 (paused ? ", paused" : ""));
    std::mt19937_64 random(1);
    World world(4, random, 3);
    for (const auto& worker : world.workers) world.begin(*worker);
    world.deliver_all();
    for (const int rank : here) {
      auto& worker = world.at(rank);
      for (const int other : {0, 1, 2, 3}) {
        if (!here.contains(other)) worker.gone.insert(other);
      }
      paused ? worker.average.has_paused() : worker.average.was_away();
      for (const int one : ended) worker.average.has_ended(one);
    }
    for (const int rank : here) world.begin(world.at(rank));
    world.deliver_all();
    for (const int rank : here) {
      ASSERT_EQ(world.at(rank).results.size(), 2U);
      EXPECT_EQ(world.at(rank).results[1].second, survive ? here : std::set<int>());
    }
    if (here.size() != 1 || !survive) continue;
    auto& alone = world.at(*here.begin());  // the pause is over
    alone.average.was_away();
    world.begin(alone);
    world.deliver_all();
    ASSERT_EQ(alone.results.size(), 3U);
    EXPECT_EQ(alone.results[2].second, std::set<int>());
  }
}

// After a renewal a worker may count one operation less than the others, and come to it first.
TEST(Average, OneThatWaitsInAnOperationOfThePastIsTold) {
  std::mt19937_64 random(1);
  World world(3, random, 2);
  world.begin(world.at(2));
  world.deliver_all();
  for (const int rank : {0, 1}) {
    world.at(rank).ids = {{2, 0}};
    world.begin(world.at(rank));
  }
  world.deliver_all();
  ASSERT_EQ(world.at(2).results.size(), 1U);
  EXPECT_TRUE(world.at(2).results[0].second.empty());
  world.begin(world.at(2));
  world.deliver_all();
  for (const auto& worker : world.workers) EXPECT_EQ(worker->results.back().second, (std::set{0, 1, 2}));
}

}  // namespace
}  // namespace starling
