// A seeded schedule fuzzer over the edge protocol: small worlds in which every message, break, return, death, damaged
// block and loss of patience happens in random order. Afterwards both ends of every edge must agree on every swap, the
// sum of all values must be what it was (to the bit: values are integers modulo 2^64), and everybody must still be able
// to go on.
#include <algorithm>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "starling/exchange/edge.h"

namespace starling {
namespace {

using Value = std::uint64_t;
using Random = std::mt19937_64;

struct Message {
  FrameType type{};
  SwapId id;
  bool yes = false;
  std::uint64_t next_round = 0;
  Value value = 0;
};

struct World {
  struct Worker;

  // One direction of a connection: control frames overtake blocks.
  struct Queue {
    std::deque<Message> control, bulk;
  };

  struct End final : EdgeActions {
    End(World& world, int me, int other) : world(world), me(me), other(other) {}
    Worker& worker() { return *world.workers[static_cast<std::size_t>(me)]; }
    Queue& out() { return world.queues[{me, other}]; }
    bool link() const { return world.linked(me, other); }
    void send_block(SwapId id) override {
      if (link()) out().bulk.push_back({FrameType::data, id, false, 0, mine.at(id)});
    }
    void cancel_block(SwapId id) override {
      std::erase_if(out().bulk, [&](const Message& m) { return m.id == id; });
    }
    void send(FrameType type, SwapId id, bool yes) override {
      if (link()) out().control.push_back({type, id, yes, worker().next_round(), 0});
    }
    void decided(SwapId id, Outcome outcome) override {
      --worker().open[id.block];
      if (outcome == Outcome::committed) mix(id);
      if (outcome == Outcome::in_doubt) doubts.insert(id);
    }
    void mended(SwapId id, bool committed) override {
      doubts.erase(id);
      if (committed) mix(id);
    }
    void mix(SwapId id) {
      EXPECT_TRUE(committed.insert(id).second);
      worker().x[id.block] += theirs.at(id) - mine.at(id);
    }

    World& world;
    const int me, other;
    Edge edge{*this};
    std::map<SwapId, Value> mine, theirs;
    std::set<SwapId> committed, doubts;
    bool knows_break = false;
  };

  struct Worker {
    std::vector<Value> x;
    std::vector<int> open;
    std::uint64_t round = 0, jump_to = 0;
    std::size_t started = 0;
    bool alive = true;
    std::map<int, std::unique_ptr<End>> ends;

    std::uint64_t next_round() const { return started == x.size() ? round + 1 : round; }
    void others_are_at(std::uint64_t r) {
      if (r > round + 2) jump_to = std::max(jump_to, r);  // one ahead is the normal slack
    }
    bool may_step() const {
      return alive && std::all_of(open.begin(), open.end(), [](int n) { return n == 0; });
    }
    void step() {
      const std::uint64_t next = std::max(round + 1, jump_to);
      started = 0;
      const bool jump = next > round + 1;
      round = next;
      if (jump) {
        for (auto& [rank, end] : ends) end->edge.skip(next);
      }
      for (std::uint32_t b = 0; b < x.size(); ++b) {
        open[b] = static_cast<int>(ends.size());
        ++started;
        for (auto& [rank, end] : ends) {
          end->mine[{round, b}] = x[b];
          end->edge.start({round, b}, {});
        }
      }
    }
  };

  World(int n, std::size_t blocks, Random& random) : random(random) {
    for (int i = 0; i < n; ++i) {
      auto worker = std::make_unique<Worker>();
      worker->open.assign(blocks, 0);
      for (std::size_t b = 0; b < blocks; ++b) worker->x.push_back(random());
      workers.push_back(std::move(worker));
    }
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) {
        if (i != j) workers[static_cast<std::size_t>(i)]->ends[j] = std::make_unique<End>(*this, i, j);
      }
    }
    for (int i = 0; i < n; ++i) {
      for (int j = i + 1; j < n; ++j) connect(i, j);
    }
  }

  End& end(int i, int j) { return *workers[static_cast<std::size_t>(i)]->ends.at(j); }
  bool linked(int i, int j) const { return links.contains(std::minmax(i, j)); }
  void connect(int i, int j) {
    links.insert(std::minmax(i, j));
    for (const auto& [a, b] : {std::pair{i, j}, std::pair{j, i}}) {
      queues[{a, b}] = {};
      end(a, b).knows_break = false;
    }
    for (const auto& [a, b] : {std::pair{i, j}, std::pair{j, i}}) end(a, b).edge.connected();
  }
  // What is under way is lost from a random place on; each end learns of it in its own time.
  void break_link(int i, int j) {
    if (links.erase(std::minmax(i, j)) == 0) return;
    for (const auto& [a, b] : {std::pair{i, j}, std::pair{j, i}}) {
      for (auto* queue : {&queues[{a, b}].control, &queues[{a, b}].bulk}) {
        queue->resize(pick(queue->size() + 1));
      }
    }
  }
  void die(int i) {
    workers[static_cast<std::size_t>(i)]->alive = false;
    for (auto& [j, e] : workers[static_cast<std::size_t>(i)]->ends) break_link(i, j);
  }

  std::size_t pick(std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); }
  bool chance(double p) { return std::bernoulli_distribution(p)(random); }

  // One event; false where none is possible.
  bool event(bool faults, std::uint64_t last_round) {
    std::vector<std::function<void()>> events;
    const int n = static_cast<int>(workers.size());
    for (int i = 0; i < n; ++i) {
      Worker& worker = *workers[static_cast<std::size_t>(i)];
      if (!worker.alive) continue;
      if (worker.may_step() && worker.round < last_round) events.push_back([&] { worker.step(); });
      for (int j = 0; j < n; ++j) {
        if (i == j) continue;
        Queue& in = queues[{j, i}];
        End& here = end(i, j);
        const bool broken = !linked(i, j);
        if (!here.knows_break) {
          if (!in.control.empty()) events.push_back([&] { deliver_control(worker, here, in); });
          if (!in.bulk.empty()) events.push_back([&, faults] { deliver_block(here, in, faults); });
          if (broken) events.push_back([&] { here.knows_break = true, in = {}, here.edge.disconnected(); });
        }
        const bool peer_alive = workers[static_cast<std::size_t>(j)]->alive;
        if (broken && i < j && here.knows_break && end(j, i).knows_break && peer_alive) {
          events.push_back([this, i, j] { connect(i, j); });
        }
        if (!faults) continue;
        if (!broken && i < j && chance(0.02)) events.push_back([this, i, j] { break_link(i, j); });
        if (!here.edge.open().empty() && chance(0.05)) {
          events.push_back([&] { here.edge.give_up(here.edge.open()[pick(here.edge.open().size())]); });
        }
      }
      if (faults && chance(0.0005)) events.push_back([this, i] { die(i); });
    }
    if (events.empty()) return false;
    events[pick(events.size())]();
    return true;
  }

  static void deliver_control(Worker& worker, End& here, Queue& in) {
    const Message m = in.control.front();
    in.control.pop_front();
    if (m.type == FrameType::abort && m.yes) worker.others_are_at(m.next_round);
    if (m.type == FrameType::skip) worker.others_are_at(m.id.round);
    here.edge.frame(m.type, m.id, m.yes);
  }
  void deliver_block(End& here, Queue& in, bool faults) {
    const Message m = in.bulk.front();
    in.bulk.pop_front();
    if (here.edge.wants(m.id)) here.theirs[m.id] = m.value;
    here.edge.block(m.id, !faults || !chance(0.05));
  }

  Value sum() const {
    Value sum = 0;
    for (const auto& worker : workers) {
      for (const Value x : worker->x) sum += x;
    }
    return sum;
  }
  std::uint64_t latest() const {
    std::uint64_t round = 0;
    for (const auto& worker : workers) round = std::max(round, worker->round);
    return round;
  }

  Random& random;
  std::vector<std::unique_ptr<Worker>> workers;
  std::map<std::pair<int, int>, Queue> queues;
  std::set<std::pair<int, int>> links;
};

void run(std::uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  World world(2 + static_cast<int>(random() % 3), 1 + random() % 2, random);
  const Value before = world.sum();
  for (int k = 0; k < 150; ++k) world.event(true, 8);
  // No more faults: everybody who lives must go on. Those who fell behind jump to the others, or one round past those
  // who wait at the end of a stretch; after a few stretches all must meet in every round.
  const auto go_on_to = [&](std::uint64_t round) {
    for (int k = 0; k < 20000 && world.event(false, round); ++k) {
    }
  };
  for (int stretch = 0; stretch < 3; ++stretch) go_on_to(world.latest() + 3);
  const std::uint64_t goal = world.latest() + 3;
  go_on_to(goal);
  bool deaths = false;
  for (const auto& worker : world.workers) deaths |= !worker->alive;
  for (const auto& worker : world.workers) {
    if (worker->alive) {
      ASSERT_EQ(worker->round, goal) << "a worker is stuck";
    }
  }
  const int n = static_cast<int>(world.workers.size());
  for (int i = 0; i < n; ++i) {
    for (int j = i + 1; j < n; ++j) {
      if (!world.workers[static_cast<std::size_t>(i)]->alive ||
          !world.workers[static_cast<std::size_t>(j)]->alive)
        continue;
      ASSERT_EQ(world.end(i, j).committed, world.end(j, i).committed);
      ASSERT_TRUE(world.end(i, j).doubts.empty() && world.end(j, i).doubts.empty());
      ASSERT_TRUE(world.end(i, j).committed.contains({goal, 0}));
    }
  }
  if (!deaths) {
    ASSERT_EQ(world.sum(), before);
  }
}

TEST(EdgeFuzz, BothEndsAgreeTheSumIsConservedAndNobodyIsStuck) {
  const char* runs = std::getenv("STARLING_FUZZ_RUNS");  // fewer under sanitizers
  const std::uint64_t n = runs == nullptr ? 100'000 : std::strtoull(runs, nullptr, 10);
  for (std::uint64_t seed = 1; seed <= n && !testing::Test::HasFatalFailure(); ++seed) run(seed);
}

}  // namespace
}  // namespace starling
