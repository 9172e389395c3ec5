// The agreement to average: case by case, then in random worlds with delays, refusals, averagings
// that are given up, connections that break, pauses, stops and deaths.
#include "starling/gossip/pairing.h"

#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>

namespace starling {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using namespace std::chrono_literals;

struct PairingRecorder : PairingActions {
  void ask(int peer, std::uint64_t number) override { say("ask", peer, number); }
  void answer(int peer, std::uint64_t number, Answer answer) override {
    say(answer == Answer::yes ? "yes" : answer == Answer::busy ? "busy" : "no", peer, number);
  }
  void begin(int peer, std::uint64_t number, bool i_asked) override {
    say(i_asked ? "BEGIN" : "JOIN", peer, number);
  }
  void refuse(int peer, std::uint64_t number) override { say("refuse", peer, number); }
  void wake(std::uint64_t alarm, Duration after) override {
    alarms.push_back(alarm);
    afters.push_back(after);
  }
  void say(const char* what, int peer, std::uint64_t number) {
    said.push_back(fmt::format("{} {}.{}", what, peer, number));
  }
  std::vector<std::string> take() { return std::exchange(said, {}); }
  std::vector<std::string> said;
  std::vector<std::uint64_t> alarms;
  std::vector<Duration> afters;
};

struct PairingTest : testing::Test {
  PairingTest() {
    for (const int peer : {1, 3, 4}) pairing.up(peer);
  }
  PairingRecorder recorder;
  Pairing pairing{2, 7, {}, recorder};
};

TEST_F(PairingTest, AsksAndBeginsWithTheAnswersNumber) {
  pairing.want(3);
  EXPECT_THAT(recorder.take(), ElementsAre("ask 3.1"));
  pairing.answered(3, 5, Answer::yes);
  EXPECT_THAT(recorder.take(), ElementsAre("BEGIN 3.5"));
  pairing.want(3);
  EXPECT_THAT(recorder.take(), IsEmpty());
  pairing.ended();
  EXPECT_THAT(recorder.take(), ElementsAre("ask 3.7"));
}

TEST_F(PairingTest, OneAtATime) {
  pairing.asked(3, 2);
  EXPECT_THAT(recorder.take(), ElementsAre("yes 3.2", "JOIN 3.2"));
  pairing.asked(4, 6);
  EXPECT_THAT(recorder.take(), ElementsAre("busy 4.6"));
  pairing.ended();
  pairing.asked(4, 8);
  EXPECT_THAT(recorder.take(), ElementsAre("yes 4.8", "JOIN 4.8"));
}

TEST_F(PairingTest, AnswersAreAwaitedThreeTimesAsLongAsTheyTake) {
  const auto awaits = [&](int peer) {
    pairing.want(peer);
    const Duration patience = recorder.afters.back();
    pairing.alarm(recorder.alarms.back());
    pairing.asked(peer, 0);  // it speaks
    pairing.ended();
    return patience;
  };
  EXPECT_EQ(awaits(3), 200ms);
  pairing.answer_took(3, 40ms);
  EXPECT_EQ(awaits(3), 200ms);
  pairing.answer_took(4, 300ms);
  EXPECT_EQ(awaits(4), 900ms);
  EXPECT_EQ(awaits(3), 200ms);
  pairing.answer_took(4, 380ms);
  EXPECT_EQ(awaits(4), 930ms);
  pairing.answer_took(4, 1h);
  EXPECT_EQ(awaits(4), 2s);
}

TEST_F(PairingTest, WhoIsRefusedTriesAgainALittleLaterAndLater) {
  pairing.want(3);
  pairing.answered(3, 1, Answer::busy);
  EXPECT_THAT(recorder.take(), ElementsAre("ask 3.1"));
  pairing.asked(4, 2);  // in the meantime
  EXPECT_THAT(recorder.take(), ElementsAre("yes 4.2", "JOIN 4.2"));
  pairing.alarm(recorder.alarms.back());
  EXPECT_THAT(recorder.take(), IsEmpty());
  pairing.ended();
  EXPECT_THAT(recorder.take(), ElementsAre("ask 3.1"));
  const Duration first = recorder.afters[1];
  for (int k = 0; k < 10; ++k) {
    pairing.answered(3, 1, Answer::busy);
    pairing.alarm(recorder.alarms.back());
  }
  EXPECT_GT(recorder.afters[recorder.afters.size() - 2], 10 * first);
  EXPECT_EQ(pairing.statistics().refused, 11u);
}

TEST_F(PairingTest, WhoPausesForgetsWhatTheLowerRankWillNotAnswer) {
  pairing.want(1);
  pairing.pause();
  pairing.asked(1, 1);
  EXPECT_THAT(recorder.take(), ElementsAre("ask 1.2", "busy 1.1"));
  EXPECT_TRUE(pairing.idle());
  pairing.resume();
  EXPECT_THAT(recorder.take(), ElementsAre("ask 1.2"));
}

TEST_F(PairingTest, OfTwoWhoAskEachOtherTheLowerRanksCounts) {
  pairing.want(1);
  pairing.asked(1, 1);
  EXPECT_THAT(recorder.take(), ElementsAre("ask 1.2", "yes 1.1", "JOIN 1.1"));
  pairing.ended();
  EXPECT_THAT(recorder.take(), ElementsAre("ask 1.2"));  // mine is still due
  pairing.answered(1, 2, Answer::yes);
  pairing.ended();
  pairing.want(3);
  pairing.asked(3, 2);
  EXPECT_THAT(recorder.take(), ElementsAre("BEGIN 1.2", "ask 3.1"));  // it will answer
  pairing.answered(3, 1, Answer::yes);
  EXPECT_THAT(recorder.take(), ElementsAre("BEGIN 3.1"));
}

TEST_F(PairingTest, WhoDoesNotAnswerIsNotAskedUntilItSpeaks) {
  pairing.want(3);
  pairing.want(4);
  pairing.alarm(recorder.alarms.back());
  EXPECT_THAT(recorder.take(), ElementsAre("ask 3.1", "ask 4.1"));
  pairing.want(3);
  EXPECT_EQ(pairing.due(), 0u);
  pairing.answered(3, 1, Answer::yes);  // after all; but I am asking another
  EXPECT_THAT(recorder.take(), ElementsAre("refuse 3.1"));
  pairing.answered(4, 1, Answer::yes);
  pairing.want(3);
  pairing.ended();
  EXPECT_THAT(recorder.take(), ElementsAre("BEGIN 4.1", "ask 3.3"));
  pairing.alarm(recorder.alarms.back());
  pairing.answered(3, 3, Answer::yes);  // and now I am free
  EXPECT_THAT(recorder.take(), ElementsAre("BEGIN 3.3"));
}

// Both have asked, each when the other no longer did: the number tells whose averaging it is.
TEST_F(PairingTest, AnAnswerThatALaterAveragingHasOvertakenIsRefused) {
  pairing.want(3);
  pairing.alarm(recorder.alarms.back());
  pairing.asked(3, 2);
  EXPECT_THAT(recorder.take(), ElementsAre("ask 3.1", "yes 3.2", "JOIN 3.2"));
  pairing.answered(3, 1, Answer::yes);
  EXPECT_THAT(recorder.take(), ElementsAre("refuse 3.1"));
  pairing.ended();
  pairing.answered(3, 4, Answer::yes);  // not an answer to a request of mine
  EXPECT_THAT(recorder.take(), IsEmpty());
}

TEST_F(PairingTest, APauseEndsWhatIsUnderWayAndBeginsNothing) {
  pairing.want(3);
  pairing.pause();
  pairing.answered(3, 1, Answer::busy);
  pairing.alarm(recorder.alarms.back());
  pairing.asked(4, 2);
  EXPECT_THAT(recorder.take(), ElementsAre("ask 3.1", "busy 4.2"));
  EXPECT_TRUE(pairing.idle());
  pairing.resume();
  EXPECT_THAT(recorder.take(), ElementsAre("ask 3.1"));
}

TEST_F(PairingTest, WhoDeclinesStillAsks) {
  pairing.decline();
  pairing.asked(4, 2);
  EXPECT_THAT(recorder.take(), ElementsAre("no 4.2"));
  pairing.want(1);
  pairing.asked(1, 1);  // and forgets that it was asked
  EXPECT_THAT(recorder.take(), ElementsAre("ask 1.2", "no 1.1", "ask 1.2"));
  pairing.answered(1, 2, Answer::yes);
  pairing.ended();
  EXPECT_THAT(recorder.take(), ElementsAre("BEGIN 1.2"));
  pairing.resume();
  pairing.asked(4, 4);
  EXPECT_THAT(recorder.take(), ElementsAre("yes 4.4", "JOIN 4.4"));
}

TEST_F(PairingTest, WhereANeighbourDeclinesTheNextIsAsked) {
  pairing.want(3);
  pairing.want(4);
  pairing.answered(3, 1, Answer::no);
  EXPECT_THAT(recorder.take(), ElementsAre("ask 3.1", "ask 4.1"));
  EXPECT_EQ(pairing.statistics().dropped, 1u);
  EXPECT_EQ(pairing.due(), 0u);
}

TEST_F(PairingTest, ANeighbourThatIsGoneIsNotWaitedFor) {
  pairing.want(3);
  pairing.want(4);
  pairing.down(3);
  EXPECT_THAT(recorder.take(), ElementsAre("ask 3.1", "ask 4.1"));
  pairing.want(3);
  EXPECT_EQ(pairing.statistics().dropped, 2u);
}

// --- random worlds ---

// Everything that can happen does so in random order, at random times. Messages are slow,
// averagings take their time or are given up, and connections break and come back. Workers pause,
// decline, stop for a while and die. Messages from one sender to one receiver keep their order.
class PairingWorld {
 public:
  PairingWorld(std::uint64_t seed, int workers) : random_(seed) {
    for (int rank = 0; rank < workers; ++rank)
      workers_.push_back(std::make_unique<Worker>(*this, rank, seed));
    for (const auto& i : workers_) {
      for (const auto& j : workers_) {
        if (i == j) continue;
        i->pairing.up(j->rank);
        i->connection[j->rank] = kFirst;
      }
    }
  }

  void run() {
    for (int k = 0; k < 60; ++k) {
      const auto what = random_() % 100;
      Worker& one = *workers_[random_() % workers_.size()];
      Worker& other = *workers_[random_() % workers_.size()];
      if (what < 70 && one.rank != other.rank && !one.dead) {
        at(now_ + some(20ms), one.rank, [&one, peer = other.rank] { one.pairing.want(peer); });
      } else if (what < 73 && one.stopped_until <= now_) {
        one.stopped_until = now_ + 300ms;
      } else if (what < 75 && living() > 2) {
        kill(one);
      } else if (what < 79) {
        at(now_, one.rank, [this, &one] { give_up(one); });
      } else if (what < 82 && one.rank != other.rank && !one.dead && !other.dead) {
        disconnect(one, other);
      } else if (what < 84 && !one.dead) {
        at(now_, one.rank, [&one] { one.pairing.pause(); });
        at(now_ + some(60ms), one.rank, [&one] { one.pairing.resume(); });
      } else if (what < 87 && !one.dead) {
        at(now_, one.rank, [&one] { one.pairing.decline(); });
        at(now_ + some(60ms), one.rank, [&one] { one.pairing.resume(); });
      }
      for (int e = 0; e < 5 && !events_.empty(); ++e) next();
    }
    while (!events_.empty()) next();
    for (const auto& worker : workers_) {
      if (worker->dead) continue;
      EXPECT_TRUE(worker->pairing.idle()) << worker->rank;
      EXPECT_EQ(worker->pairing.due(), 0u) << worker->rank;
      EXPECT_FALSE(worker->averaging) << worker->rank;
    }
    // An averaging that one end began, the other one began or refused, unless one of them died or
    // its message was lost.
    for (const auto& [averaging, said] : said_) {
      const auto& [i, j, number] = averaging;
      if (workers_[i]->dead || workers_[j]->dead || broke_.contains({i, j})) continue;
      EXPECT_EQ(said.size(), 2u) << fmt::format("{} and {}, number {}", i, j, number);
    }
  }
  std::uint64_t begun() const { return begun_; }

 private:
  struct Worker final : PairingActions {
    Worker(PairingWorld& world, int rank, std::uint64_t seed)
        : world(world), rank(rank), pairing(rank, seed, {.answer = 50ms, .again = 1ms}, *this) {}
    void ask(int peer, std::uint64_t number) override {
      world.send(rank, peer, [=, this](Worker& to) { to.pairing.asked(rank, number); });
    }
    void answer(int peer, std::uint64_t number, Answer answer) override {
      world.send(rank, peer, [=, this](Worker& to) { to.pairing.answered(rank, number, answer); });
    }
    void begin(int peer, std::uint64_t number, bool i_asked) override {
      EXPECT_FALSE(averaging);
      const auto [asker, asked] = i_asked ? std::pair(rank, peer) : std::pair(peer, rank);
      const auto [said, first] =
          world.asker_.try_emplace({std::min(asker, asked), std::max(asker, asked), number}, asker);
      EXPECT_EQ(said->second, asker) << "each says that it asked, or that the other did";
      averaging = {peer, number};
      ++world.begun_;
      tell(peer, number);
      world.end_where_both_have_spoken(*this);
    }
    void refuse(int peer, std::uint64_t number) override { tell(peer, number); }
    // Ends the current averaging, if it is this one.
    void end(int peer, std::uint64_t number) {
      if (averaging != std::pair(peer, number)) return;
      averaging.reset();
      pairing.ended();
    }
    void lose(int peer) {
      connection[peer] = 0;
      pairing.down(peer);
      if (averaging && averaging->first == peer) end(peer, averaging->second);
    }
    void wake(std::uint64_t alarm, Duration after) override {
      world.at(world.now_ + after, rank, [=, this] { pairing.alarm(alarm); });
    }
    void tell(int peer, std::uint64_t number) {
      auto& said = world.said_[{std::min(rank, peer), std::max(rank, peer), number}];
      EXPECT_TRUE(said.insert(rank).second) << "twice";
      world.send(rank, peer, [=, this](Worker& to) {
        to.heard.insert({rank, number});
        world.end_where_both_have_spoken(to);
      });
    }
    PairingWorld& world;
    const int rank;
    Pairing pairing;
    bool dead = false;
    Time stopped_until{};
    // To each peer, by number; 0: none. Messages of other connections are lost.
    std::map<int, int> connection;
    std::optional<std::pair<int, std::uint64_t>> averaging;
    // Averagings that its peers have begun or refused.
    std::set<std::pair<int, std::uint64_t>> heard;
  };

  Duration some(Duration most) { return Duration(random_() % static_cast<std::uint64_t>(most.count())); }
  std::size_t living() const {
    std::size_t count = 0;
    for (const auto& worker : workers_) count += !worker->dead;
    return count;
  }
  void at(Time when, int rank, std::function<void()> work) {
    events_.emplace(std::pair{when, ++sequence_}, std::pair{rank, std::move(work)});
  }
  void send(int from, int to, std::function<void(Worker&)> work) {
    const int connection = workers_[static_cast<std::size_t>(from)]->connection[to];
    if (connection == 0) return;
    Time& last = last_[{from, to}];
    last = std::max(last, now_ + some(random_() % 10 == 0 ? Duration(20ms) : Duration(1ms)));
    at(last, to, [=, this, work = std::move(work)] {
      Worker& receiver = *workers_[static_cast<std::size_t>(to)];
      if (receiver.connection[from] == connection) work(receiver);
    });
  }
  void end_where_both_have_spoken(Worker& worker) {
    if (!worker.averaging || !worker.heard.contains(*worker.averaging)) return;
    at(now_ + some(3ms), worker.rank,
       [&worker, which = *worker.averaging] { worker.end(which.first, which.second); });
  }
  // Like an averaging without progress: the other end is told.
  void give_up(Worker& one) {
    if (!one.averaging) return;
    const auto [peer, number] = *one.averaging;
    one.end(peer, number);
    send(one.rank, peer, [rank = one.rank, number = number](Worker& other) { other.end(rank, number); });
  }
  // Messages in flight are lost once the receiver has noticed. Each notices at its own time, and
  // both connect again.
  void disconnect(Worker& one, Worker& other) {
    broke_.insert({std::min(one.rank, other.rank), std::max(one.rank, other.rank)});
    const int next = ++connections_;
    for (const auto& [an_end, the_other] : {std::pair(&one, &other), std::pair(&other, &one)}) {
      Worker *const here = an_end, *const there = the_other;
      const Time back = now_ + 30ms + some(10ms);
      at(now_ + some(20ms), here->rank, [here, peer = there->rank] { here->lose(peer); });
      at(back, here->rank, [here, there, next] {
        if (there->dead || here->connection[there->rank] > next) return;
        if (here->connection[there->rank] != 0) here->lose(there->rank);
        here->connection[there->rank] = next;
        here->pairing.up(there->rank);
      });
      Time& first = last_[{there->rank, here->rank}];
      first = std::max(first, back);
    }
  }
  void kill(Worker& one) {
    one.dead = true;
    for (const auto& other : workers_) {
      if (other->dead) continue;
      // After all its messages.
      const Time after = std::max(last_[{one.rank, other->rank}], now_ + some(20ms));
      at(after, other->rank, [&one, other = other.get()] { other->lose(one.rank); });
    }
  }
  void next() {
    auto node = events_.extract(events_.begin());
    now_ = std::max(now_, node.key().first);
    auto& [rank, work] = node.mapped();
    Worker& worker = *workers_[static_cast<std::size_t>(rank)];
    if (worker.dead) return;
    if (worker.stopped_until > now_) {
      at(worker.stopped_until, rank, std::move(work));
      return;
    }
    work();
  }

  std::mt19937_64 random_;
  Time now_{};
  std::uint64_t sequence_ = 0, begun_ = 0;
  std::map<std::tuple<int, int, std::uint64_t>, int>
      asker_;  // asker of the averaging with this number on this edge
  std::map<std::pair<Time, std::uint64_t>, std::pair<int, std::function<void()>>> events_;
  std::map<std::pair<int, int>, Time> last_;  // arrival of one's last message to the other
  static constexpr int kFirst = 1;
  int connections_ = kFirst;
  std::set<std::pair<int, int>> broke_;
  std::map<std::tuple<int, int, std::uint64_t>, std::set<int>> said_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

TEST(PairingFuzz, NobodyWaitsForeverAndBothEndsAgree) {
  const char* const runs = std::getenv("STARLING_FUZZ_RUNS");
  const std::uint64_t worlds = runs == nullptr ? 2'000 : std::strtoull(runs, nullptr, 10);
  std::uint64_t begun = 0;
  for (std::uint64_t seed = 1; seed <= worlds && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    PairingWorld world(seed, 2 + static_cast<int>(seed % 6));
    world.run();
    begun += world.begun();
  }
  EXPECT_GT(begun, worlds);
}

}  // namespace
}  // namespace starling
