// A seeded schedule fuzzer over the protocols of edges and groups. In small worlds every message,
// break, return, death, damaged block and loss of patience happens in random order. Afterwards all
// participants of a swap must agree on its outcome. The sum of all values must be unchanged
// (exactly: values are integers modulo a prime, so that means exist). All workers must still be
// able to go on.
#include <algorithm>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "starling/exchange/edge.h"
#include "starling/exchange/group.h"

namespace starling {
namespace {

using Random = std::mt19937_64;

// --- numbers modulo p ---

constexpr std::uint64_t p = (std::uint64_t{1} << 31) - 1;

struct Value {
  std::uint64_t v = 0;
  bool operator==(const Value&) const = default;
  friend Value operator+(Value a, Value b) { return {(a.v + b.v) % p}; }
  friend Value operator-(Value a, Value b) { return {(a.v + p - b.v) % p}; }
  friend Value operator*(Value a, Value b) { return {a.v * b.v % p}; }
};

Value one_over(std::uint64_t n) {  // n^(p-2)
  Value result{1}, power{n};
  for (std::uint64_t e = p - 2; e != 0; e >>= 1) {
    if (e & 1) result = result * power;
    power = power * power;
  }
  return result;
}

using Values = std::vector<Value>;  // a value for every shard

// --- the world ---

struct Message {
  FrameType type{};
  SwapId id;
  bool yes = false;
  std::uint64_t next_round = 0;
  Values values;  // of a block; for a part or mean the one value
};

// The partners of a round: disjoint sets of workers. A set of three or more is a group, edges, or a
// ring of directed edges.
struct Meeting {
  std::vector<int> members;
  bool group = false;
  bool directed = false;

  std::size_t place(int rank) const {
    return static_cast<std::size_t>(std::ranges::find(members, rank) - members.begin());
  }
  Direction direction(int from, int to) const {
    if (!directed) return {};
    const std::size_t n = members.size();
    return {.send = (place(from) + 1) % n == place(to), .receive = (place(to) + 1) % n == place(from)};
  }
  std::set<int> others(int me) const {
    std::set<int> others;
    for (const int rank : members) {
      const Direction way = direction(me, rank);
      if (rank != me && (way.send || way.receive)) others.insert(rank);
    }
    return others;
  }
};
using Round = std::vector<Meeting>;

struct World {
  struct Worker;

  // One direction of a connection: control frames overtake blocks.
  struct Queue {
    std::deque<Message> control, bulk;
  };

  struct End final : EdgeActions {
    End(World& world, int me, int other) : world(world), me(me), other(other) {}
    Worker& worker() { return world.worker(me); }
    Queue& out() { return world.queues[{me, other}]; }
    bool link() const { return world.linked(me, other); }
    void send_block(SwapId id) override {
      if (link()) out().bulk.push_back({FrameType::data, id, false, 0, worker().mine.at(id)});
    }
    void cancel_block(SwapId id) override {
      std::erase_if(out().bulk, [&](const Message& m) { return m.id == id && m.type == FrameType::data; });
    }
    void send(FrameType type, SwapId id, bool yes) override {
      if (link()) out().control.push_back({type, id, yes, worker().next_round(), {}});
    }
    void decided(SwapId id, Outcome outcome) override {
      --worker().open[id.block];
      if (outcome == Outcome::committed) mix(id);
      if (outcome == Outcome::in_doubt) doubts.insert(id);
      if (outcome != Outcome::aborted && pushes(id)) give(id, {p - 1});
    }
    void mended(SwapId id, bool committed) override {
      doubts.erase(id);
      if (committed) mix(id);
      if (!committed && pushes(id)) give(id, {1});  // it comes back
    }
    void mix(SwapId id) {
      EXPECT_TRUE(committed.insert(id).second);
      EXPECT_FALSE(worker().group_committed.contains(id));
      const Meeting& now = world.meeting(id.round, me);
      const Value weight = one_over(now.members.size());
      if (!now.directed) return worker().add(id, weight, theirs.at(id), worker().mine.at(id));
      if (now.direction(me, other).receive) worker().add(id, weight, theirs.at(id), {});
    }
    // A value that goes over a directed edge leaves its sender.
    bool pushes(SwapId id) const {
      const Meeting& now = world.meeting(id.round, me);
      return now.directed && now.direction(me, other).send;
    }
    void give(SwapId id, Value sign) {
      worker().add(id, sign * one_over(world.meeting(id.round, me).members.size()), worker().mine.at(id), {});
    }

    World& world;
    const int me, other;
    Edge edge{*this};
    std::map<SwapId, Values> theirs;
    std::set<SwapId> committed, doubts;
    bool knows_break = false, knows_death = false;
  };

  struct Worker final : GroupActions {
    Worker(World& world, int me) : world(world), me(me) {}
    World& world;
    const int me;
    std::vector<Values> x;
    std::vector<int> open;
    std::uint64_t round = 0, jump_to = 0;
    std::size_t started = 0;
    bool alive = true;
    std::map<int, std::unique_ptr<End>> ends;
    std::map<SwapId, Values> mine;
    Group group{*this};
    std::map<SwapId, std::map<int, Value>> parts, means;  // by sender
    std::set<SwapId> group_committed, group_doubts;
    std::set<SwapId> held;
    std::uint64_t mended_late = 0;

    // The group's requests.
    void send_parts(SwapId id) override {
      const auto& members = world.meeting(id.round, me).members;
      for (std::size_t k = 0; k < members.size(); ++k) {
        if (members[k] != me) bulk(members[k], FrameType::part, id, mine.at(id)[k]);
      }
    }
    void send_mean(SwapId id) override {
      const auto& members = world.meeting(id.round, me).members;
      const std::size_t k = shard(id, me);
      Value sum = mine.at(id)[k];
      EXPECT_EQ(parts[id].size(), members.size() - 1);
      for (const auto& [rank, value] : parts[id]) sum = sum + value;
      const Value mean = sum * one_over(members.size());
      means[id][me] = mean;
      for (const int rank : members) {
        if (rank != me) bulk(rank, FrameType::mean, id, mean);
      }
    }
    void cancel(SwapId id) override {
      for (auto& [rank, end] : ends) {
        std::erase_if(end->out().bulk, [&](const Message& m) {
          return m.id == id && (m.type == FrameType::part || m.type == FrameType::mean);
        });
      }
    }
    void send(int peer, FrameType type, SwapId id, bool yes) override {
      if (world.linked(me, peer)) ends.at(peer)->out().control.push_back({type, id, yes, next_round(), {}});
    }
    void decided(SwapId id, Outcome outcome, bool in_pairs) override {
      EXPECT_TRUE(!in_pairs || outcome == Outcome::aborted);
      const auto& members = world.meeting(id.round, me).members;
      if (in_pairs) open[id.block] += static_cast<int>(members.size()) - 1;
      for (const int rank : members) {
        if (rank == me) continue;
        in_pairs ? ends.at(rank)->edge.start(id, {}, true, sending(id)) : ends.at(rank)->edge.settle(id);
      }
      if (in_pairs && sending(id) == Sending::when_all_are_ready) held.insert(id);
      --open[id.block];
      if (outcome == Outcome::committed) mix(id);
      if (outcome == Outcome::in_doubt) group_doubts.insert(id);
    }
    void mended(SwapId id, bool committed) override {
      group_doubts.erase(id);
      if (committed) ++mended_late, mix(id);
    }
    void bulk(int to, FrameType type, SwapId id, Value value) {
      if (world.linked(me, to)) ends.at(to)->out().bulk.push_back({type, id, false, 0, {value}});
    }
    std::size_t shard(SwapId id, int rank) const { return world.meeting(id.round, me).place(rank); }
    void mix(SwapId id) {
      EXPECT_TRUE(group_committed.insert(id).second);
      const auto& members = world.meeting(id.round, me).members;
      EXPECT_EQ(means[id].size(), members.size());
      Values mean = mine.at(id);  // shards beyond the members' are unowned
      for (const auto& [rank, value] : means[id]) mean[shard(id, rank)] = value;
      add(id, {1}, mean, mine.at(id));
    }

    // x += weight * (theirs - mine)
    void add(SwapId id, Value weight, const Values& theirs, const Values& mine) {
      for (std::size_t k = 0; k < theirs.size(); ++k)
        x[id.block][k] = x[id.block][k] + weight * (theirs[k] - (mine.empty() ? Value{} : mine[k]));
    }
    std::uint64_t next_round() const { return started == x.size() ? round + 1 : round; }
    void others_are_at(std::uint64_t r) {
      if (r > round + 2) jump_to = std::max(jump_to, r);  // one ahead is the normal slack
    }
    static Sending sending(SwapId id) {
      return (id.round + id.block) % 2 == 0 ? Sending::at_once : Sending::when_all_are_ready;
    }
    void release() {
      for (const SwapId id : std::exchange(held, {})) {
        for (auto& [rank, end] : ends) end->edge.release(id);
        group.release(id);
      }
    }
    bool may_step() const { return alive && std::ranges::count(open, 0) == std::ssize(open); }
    void step() {
      started = 0;
      if (jump_to > ++round) {
        round = jump_to;
        for (auto& [rank, end] : ends) end->edge.skip(round);
        group.skip(round);
      }
      const Meeting& now = world.meeting(round, me);
      const std::set<int> others = now.others(me);
      for (std::uint32_t b = 0; b < x.size(); ++b) {
        const SwapId id{round, b};
        mine[id] = x[b];
        open[b] = now.group ? 1 : static_cast<int>(others.size());
        ++started;
        if (now.group) {
          const bool all_here = std::ranges::all_of(others, [&](int r) { return ends.at(r)->edge.up(); });
          group.start(id, others, all_here, sending(id));
        } else {
          for (const int rank : others)
            ends.at(rank)->edge.start(id, now.direction(me, rank), true, sending(id));
        }
        if (sending(id) == Sending::when_all_are_ready) held.insert(id);
      }
    }
  };

  World(int n, std::size_t blocks, Random& random) : random(random) {
    for (int i = 0; i < n; ++i) {
      auto worker = std::make_unique<Worker>(*this, i);
      worker->open.assign(blocks, 0);
      worker->x.assign(blocks, Values(static_cast<std::size_t>(n)));
      for (Values& block : worker->x) {
        for (Value& value : block) value.v = random() % p;
      }
      workers.push_back(std::move(worker));
    }
    std::vector<int> order(static_cast<std::size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t r = 1 + pick(3); r > 0; --r) {
      std::shuffle(order.begin(), order.end(), random);
      const auto cut = order.begin() + (chance(0.5) ? n : static_cast<int>(pick(order.size())));
      Round& round = rounds.emplace_back();
      for (std::vector<int> members : {std::vector(order.begin(), cut), std::vector(cut, order.end())}) {
        std::ranges::sort(members);
        const bool group = members.size() >= 3 && chance(0.7);
        const bool directed = members.size() >= 3 && !group && chance(0.5);
        round.push_back({std::move(members), group, directed});
      }
    }
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) {
        if (i != j) worker(i).ends[j] = std::make_unique<End>(*this, i, j);
      }
    }
    for (int i = 0; i < n; ++i) {
      for (int j = i + 1; j < n; ++j) connect(i, j);
    }
  }

  const Meeting& meeting(std::uint64_t round, int rank) const {
    const Round& now = rounds[round % rounds.size()];
    return std::ranges::count(now[0].members, rank) > 0 ? now[0] : now[1];
  }
  Worker& worker(int i) { return *workers[static_cast<std::size_t>(i)]; }
  End& end(int i, int j) { return *worker(i).ends.at(j); }
  bool linked(int i, int j) const { return links.contains(std::minmax(i, j)); }
  void connect(int i, int j) {
    links.insert(std::minmax(i, j));
    for (const auto& [a, b] : {std::pair{i, j}, std::pair{j, i}}) {
      queues[{a, b}] = {};
      end(a, b).knows_break = false;
    }
    for (const auto& [a, b] : {std::pair{i, j}, std::pair{j, i}}) {
      end(a, b).edge.connected();
      worker(a).group.connected(b);
    }
  }
  // Messages in flight are lost from a random place on. Each end learns of it at its own time.
  void break_link(int i, int j) {
    if (links.erase(std::minmax(i, j)) == 0) return;
    for (const auto& [a, b] : {std::pair{i, j}, std::pair{j, i}}) {
      for (auto* queue : {&queues[{a, b}].control, &queues[{a, b}].bulk})
        queue->resize(pick(queue->size() + 1));
    }
  }
  void learn_of_break(Worker& worker, End& here, Queue& in) {
    here.knows_break = true;
    in = {};
    here.edge.disconnected();
    worker.group.disconnected(here.other);
  }
  void die(int i) {
    worker(i).alive = false;
    for (auto& [j, e] : worker(i).ends) break_link(i, j);
  }

  std::size_t pick(std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); }
  bool chance(double probability) { return std::bernoulli_distribution(probability)(random); }

  // Runs one event; false if none is possible.
  bool event(bool faults, std::uint64_t last_round) {
    std::vector<std::function<void()>> events;
    const int n = static_cast<int>(workers.size());
    for (int i = 0; i < n; ++i) {
      Worker& worker = this->worker(i);
      if (!worker.alive) continue;
      if (worker.may_step() && worker.round < last_round) events.push_back([&] { worker.step(); });
      if (!worker.held.empty()) events.push_back([&] { worker.release(); });
      for (int j = 0; j < n; ++j) {
        if (i == j) continue;
        Queue& in = queues[{j, i}];
        End& here = end(i, j);
        const bool broken = !linked(i, j);
        const bool peer_alive = this->worker(j).alive;
        if (!here.knows_break) {
          if (!in.control.empty()) events.push_back([&] { deliver_control(worker, here, in); });
          if (!in.bulk.empty()) events.push_back([&, faults] { deliver_bulk(worker, here, in, faults); });
          if (broken) events.push_back([&] { learn_of_break(worker, here, in); });
        } else if (!peer_alive && !here.knows_death) {
          events.push_back([&] { here.knows_death = true, worker.group.gone(here.other); });
        }
        if (broken && i < j && here.knows_break && end(j, i).knows_break && peer_alive) {
          events.push_back([this, i, j] { connect(i, j); });
        }
        if (!faults) continue;
        if (!broken && i < j && chance(0.02)) events.push_back([this, i, j] { break_link(i, j); });
        if (!here.edge.open().empty() && chance(0.05)) {
          events.push_back([&] { here.edge.give_up(here.edge.open()[pick(here.edge.open().size())]); });
        }
      }
      if (faults && !worker.group.open().empty() && chance(0.05)) {
        events.push_back(
            [&] { worker.group.give_up(worker.group.open()[pick(worker.group.open().size())]); });
      }
      if (faults && chance(deadly ? 0.005 : 0.0005)) events.push_back([this, i] { die(i); });
    }
    if (events.empty()) return false;
    events[pick(events.size())]();
    return true;
  }

  static void deliver_control(Worker& worker, End& here, Queue& in) {
    const Message m = in.control.front();
    in.control.pop_front();
    const bool abort = m.type == FrameType::abort || m.type == FrameType::group_abort;
    if (abort && m.yes) worker.others_are_at(m.next_round);
    if (m.type >= FrameType::part) return worker.group.frame(here.other, m.type, m.id, m.yes);
    if (m.type == FrameType::skip) {
      worker.others_are_at(m.id.round);
      worker.group.skipped(here.other, m.id.round);
    }
    here.edge.frame(m.type, m.id, m.yes);
  }
  void deliver_bulk(Worker& worker, End& here, Queue& in, bool faults) {
    const Message m = in.bulk.front();
    in.bulk.pop_front();
    const bool good = !faults || !chance(0.05);
    switch (m.type) {
      case FrameType::part:
        if (worker.group.past(m.id) || worker.group.wants_part(here.other, m.id)) {
          worker.parts[m.id][here.other] = m.values[0];
          worker.group.part(here.other, m.id, good);
        }
        return;
      case FrameType::mean:
        if (worker.group.wants_mean(here.other, m.id)) worker.means[m.id][here.other] = m.values[0];
        return worker.group.mean(here.other, m.id, good);
      default:
        if (here.edge.wants(m.id)) here.theirs[m.id] = m.values;
        return here.edge.block(m.id, good);
    }
  }

  Value sum() const {
    Value sum;
    for (const auto& worker : workers) {
      for (const Values& block : worker->x) sum = std::accumulate(block.begin(), block.end(), sum);
    }
    return sum;
  }
  std::uint64_t latest() const {
    return (*std::ranges::max_element(workers, {}, [](const auto& worker) { return worker->round; }))->round;
  }

  Random& random;
  const bool deadly = chance(0.2);
  std::vector<Round> rounds;  // of the period
  std::vector<std::unique_ptr<Worker>> workers;
  std::map<std::pair<int, int>, Queue> queues;
  std::set<std::pair<int, int>> links;
};

// Counts of the tested events: a test in which they do not happen shows nothing.
struct Seen {
  std::uint64_t groups = 0, edges = 0, pushes = 0, mended_late = 0;  // swaps; the last of groups
};

void run(std::uint64_t seed, Seen& seen) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  World world(2 + static_cast<int>(random() % 4), 1 + random() % 2, random);
  const Value before = world.sum();
  for (int k = 0; k < 150; ++k) world.event(true, 8);
  // No more faults: every living worker must go on. Workers that fell behind jump to the others, or
  // one round past those that wait at the end of a stretch. After a few stretches all must meet in
  // every round.
  const auto go_on_to = [&](std::uint64_t round) {
    for (int k = 0; k < 20000 && world.event(false, round);) ++k;
  };
  for (int stretch = 0; stretch < 3; ++stretch) go_on_to(world.latest() + 3);
  const std::uint64_t goal = world.latest() + 3;
  go_on_to(goal);
  bool deaths = false;
  for (const auto& worker : world.workers) {
    deaths |= !worker->alive;
    if (!worker->alive) continue;
    ASSERT_EQ(worker->round, goal) << "a worker is stuck";
    ASSERT_TRUE(worker->group_doubts.empty());
    seen.groups += worker->group_committed.size();
    seen.mended_late += worker->mended_late;
  }
  const int n = static_cast<int>(world.workers.size());
  for (int i = 0; i < n; ++i) {
    for (int j = i + 1; j < n; ++j) {
      if (!world.worker(i).alive || !world.worker(j).alive) continue;
      ASSERT_EQ(world.end(i, j).committed, world.end(j, i).committed);
      ASSERT_TRUE(world.end(i, j).doubts.empty() && world.end(j, i).doubts.empty());
      seen.edges += world.end(i, j).committed.size();
      for (const SwapId id : world.end(i, j).committed) seen.pushes += world.meeting(id.round, i).directed;
      // The groups that contain both.
      const auto together = [&](SwapId id) {
        return &world.meeting(id.round, i) == &world.meeting(id.round, j);
      };
      for (const auto& [a, b] : {std::pair{i, j}, std::pair{j, i}}) {
        for (const SwapId id : world.worker(a).group_committed)
          ASSERT_TRUE(!together(id) || world.worker(b).group_committed.contains(id));
      }
      const SwapId last{goal, 0};
      if (together(last) && world.meeting(goal, i).others(i).contains(j)) {
        ASSERT_TRUE(world.end(i, j).committed.contains(last) ||
                    world.worker(i).group_committed.contains(last));
      }
    }
  }
  if (!deaths) {
    ASSERT_EQ(world.sum(), before);
  }
}

TEST(ProtocolFuzz, AllAgreeTheSumIsConservedAndNobodyIsStuck) {
  const char* runs = std::getenv("STARLING_FUZZ_RUNS");  // see CMakeLists.txt and scripts/sanitize
  const std::uint64_t n = runs == nullptr ? 5'000 : std::strtoull(runs, nullptr, 10);
  Seen seen;
  for (std::uint64_t seed = 1; seed <= n && !testing::Test::HasFatalFailure(); ++seed) run(seed, seen);
  EXPECT_GT(seen.groups, n);
  EXPECT_GT(seen.edges, n);
  EXPECT_GT(seen.pushes, n / 10);
  EXPECT_GT(seen.mended_late, n / 1000);
}

}  // namespace
}  // namespace starling
