// Gossip on virtual workers: the theory's speed and edge rates, late and lost messages, and
// independence of the machine.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "starling/gossip/ad_psgd.h"
#include "starling/gossip/gossip.h"
#include "starling/topology/schedules.h"
#include "tests/refusal.h"
#include "tests/virtual_workers.h"

namespace starling {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kSize = 64;  // values of a worker
constexpr Duration kGradient = 100ms;

using Values = std::vector<std::vector<float>>;  // by worker

double distance(const Values& x) {
  double squares = 0;
  for (std::size_t k = 0; k < kSize; ++k) {
    double mean = 0;
    for (const auto& one : x) mean += one[k] / static_cast<double>(x.size());
    for (const auto& one : x) squares += (one[k] - mean) * (one[k] - mean);
  }
  return std::sqrt(squares / static_cast<double>(x.size() * kSize));
}

struct Begin {
  float common = 0;  // deviation of the common part of all workers
  float own = 1;     // deviation of each worker's own part
  float moves = 0;   // per gradient
  // Sometimes a connection breaks in the middle of an averaging.
  bool breaks = false;
  // Worker 1's transport stands still for 1.5 of every 3 seconds: averagings in flight to it are
  // given up, and it takes them later.
  bool stalls = false;
  Duration latency{};                                     // of a frame
  double rate = std::numeric_limits<double>::infinity();  // of a link, in bytes per second
};

struct End {
  Values x;
  // Drift per value: of the sum of all w x, or with momentum of all (x + x~) / 2, relative to the
  // gradients' additions.
  double drift = 0;
  double mass = 0;     // the sum of all weights
  double least = 1;    // least weight at any time
  double tracked = 0;  // drift of the sum of all y relative to its additions
  std::vector<GossipStatistics> statistics;
};

// The result after so many gradients. The workers begin at x = x~.
End gossiped(GossipOptions options, const Begin& begin, int gradients) {
  const int n = options.rates.workers();
  options.seed = 3;
  const auto time = std::make_shared<VirtualTime>(n);
  LocalHub hub(n, {}, virtual_network(time, begin.rate, begin.latency));
  End end{.x = Values(static_cast<std::size_t>(n)),
          .statistics = std::vector<GossipStatistics>(static_cast<std::size_t>(n))};
  double sum = 0, sum_y = 0;  // of one worker at a time
  virtual_workers(*time, n, [&](int rank) {
    std::mt19937_64 same(99), random(static_cast<std::uint64_t>(rank));
    std::normal_distribution<float> normal, common;
    std::vector<float> mine(kSize);
    for (float& value : mine) {
      value = begin.common * common(same) + begin.own * normal(random);
      sum -= value;
    }
    Gossip gossip(hub.endpoint(rank), options, on_host({mine}, *options.algorithm),
                  [](Level, const std::string&) {});
    gossip.meet();
    for (int k = 0; k < gradients; ++k) {
      time->sleep(kGradient);
      const int other = (rank + 1) % n;
      if (begin.breaks) k % 5 == 3 ? hub.sever(rank, other) : hub.mend(rank, other);
      if (begin.stalls && rank == 0) k % 30 >= 15 ? hub.pause(1) : hub.resume(1);
      gossip.access(0, [&](const Held& held) { end.least = std::min(end.least, held.weight); });
      if (begin.moves != 0) {
        gossip.gradient(0, [&](const Held& held) {
          mix_momentum(held.x, held.x_tilde, held.eta_tau);
          const auto x = held.x, x_tilde = held.x_tilde;
          for (std::size_t i = 0; i < x.size(); ++i) {
            const float d = begin.moves * normal(random), before = x[i];
            x[i] += d;
            sum -= held.weight * (double{x[i]} - double{before});
            if (!x_tilde.empty()) x_tilde[i] += d;
          }
          for (float& y : held.y) {
            const float before = y;
            y += begin.moves * normal(random);
            sum_y -= double{y} - double{before};
          }
        });
      }
      gossip.stepped();
    }
    if (begin.breaks || begin.stalls) {
      if (begin.breaks) hub.mend(rank, (rank + 1) % n);
      time->sleep(3s);  // workers in doubt ask
    }
    gossip.pause();
    gossip.gradient(0, [&](const Held& held) {
      mix_momentum(held.x, held.x_tilde, held.eta_tau);
      const auto x = held.x, x_tilde = held.x_tilde;
      end.x[static_cast<std::size_t>(rank)].assign(x.begin(), x.end());
      for (std::size_t i = 0; i < x.size(); ++i)
        sum += held.weight * (x_tilde.empty() ? double{x[i]} : (double{x[i]} + double{x_tilde[i]}) / 2);
      end.mass += held.weight;
      for (const float y : held.y) sum_y += y;
    });
    end.statistics[static_cast<std::size_t>(rank)] = gossip.statistics();
    time->sleep(1s);  // the others may not have paused yet
  });
  end.drift = std::abs(sum) / (n * static_cast<double>(kSize));
  end.tracked = std::abs(sum_y) / (n * static_cast<double>(kSize));
  return end;
}

GossipOptions options_of(const std::string& topology, int n, bool momentum, Wire wire = Wire::fp32) {
  GossipOptions options{.rates = pair_rates(make_schedule(topology, n), 1), .wire = wire};
  if (momentum) options.algorithm = pair_averaging(a2cid2_of(options.rates));
  return options;
}

// With gradients that change nothing.
Values gossiped(const std::string& topology, int n, bool momentum, int gradients) {
  return gossiped(options_of(topology, n, momentum), {}, gradients).x;
}

// exp(-decay) per gradient.
double decay(const std::string& topology, int n, bool momentum, int from, int to) {
  return std::log(distance(gossiped(topology, n, momentum, from)) /
                  distance(gossiped(topology, n, momentum, to))) /
         (to - from);
}

TEST(VirtualGossip, TheSameSeedGivesTheSameBits) {
  const Values once = gossiped("ring", 8, true, 50);
  EXPECT_EQ(once, gossiped("ring", 8, true, 50));
  EXPECT_NE(once, gossiped("ring", 8, false, 50));
}

// A gradient of worker a or, if b is another worker, an averaging of both.
struct Event {
  Time at;
  int a, b;
};

float moved_by(int rank, int k, std::size_t i) {
  return 0.1F * std::sin(static_cast<float>(rank + 7 * k) + static_cast<float>(i));
}

// The equations of a2cid2.h, event by event. T = float gives the bits of gossip without momentum.
template <class T>
class Plain {
 public:
  Plain(int rank, const std::vector<float>& x) : rank_(rank), x_(x.begin(), x.end()), x_tilde_(x_) {}

  void mix(Time now, double eta) {
    const double tau = gradient_ == 0 ? 0 : std::min(seconds(now - mixed_) / gradient_, credit_);
    credit_ -= tau;
    const double q = std::exp(-2 * eta * tau);
    for (std::size_t i = 0; i < x_.size() && eta > 0; ++i) {
      const T a = x_[i], b = x_tilde_[i];
      x_[i] = (1 + q) / 2 * a + (1 - q) / 2 * b;
      x_tilde_[i] = (1 - q) / 2 * a + (1 + q) / 2 * b;
    }
    mixed_ = now;
  }
  void gradient(Time now, double eta) {
    mix(now, eta);
    for (std::size_t i = 0; i < x_.size(); ++i) {
      const T d = moved_by(rank_, made_, i);
      x_[i] += d;
      x_tilde_[i] += d;
    }
    if (made_++ > 0) {
      const double took = seconds(now - last_);
      gradient_ = gradient_ == 0 ? took : (gradient_ + took) / 2;
    }
    last_ = now;
  }
  static void average(Plain& i, Plain& j, Time now, const A2cid2& momentum) {
    for (Plain* one : {&i, &j}) one->mix(now, momentum.eta);
    for (std::size_t k = 0; k < i.x_.size(); ++k) {
      const T difference = j.x_[k] - i.x_[k];
      i.x_[k] += T{0.5} * difference;
      j.x_[k] -= T{0.5} * difference;
      i.x_tilde_[k] += static_cast<T>(momentum.alpha_tilde) * difference;
      j.x_tilde_[k] -= static_cast<T>(momentum.alpha_tilde) * difference;
    }
    // At rate 1 on a ring a worker averages once per gradient.
    for (Plain* one : {&i, &j}) one->credit_ = std::min(one->credit_ + 1, Gossip::kMostCredit);
  }
  const std::vector<T>& x() const { return x_; }
  const std::vector<T>& x_tilde() const { return x_tilde_; }

 private:
  const int rank_;
  std::vector<T> x_, x_tilde_;
  int made_ = 0;
  double gradient_ = 0, credit_ = Gossip::kMostCredit;
  Time last_{}, mixed_{};
};

struct Gossiped {
  std::vector<Event> events;
  Values begin, x, x_tilde;
  Time end;
};

constexpr int kMade = 40;  // gradients of each

// On a ring of 5 workers with different speeds, over a network that takes no time.
Gossiped with_events(const GossipOptions& options) {
  constexpr int n = 5;
  Gossiped all{.events = {}, .begin = Values(n), .x = Values(n), .x_tilde = Values(n), .end = Time(6s)};
  const auto time = std::make_shared<VirtualTime>(n);
  LocalHub hub(n, {}, {.time = time, .cross = [&](int from, int to, std::size_t bytes, Time now) {
                         if (bytes > 4 * kSize && from < to) all.events.push_back({now, from, to});
                         return Crossing{now, now};
                       }});
  virtual_workers(*time, n, [&](int rank) {
    std::vector<float>& mine = all.begin[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < kSize; ++i) mine.push_back(moved_by(rank, 100, i));
    Gossip gossip(hub.endpoint(rank), options, on_host({mine}, *options.algorithm),
                  [](Level, const std::string&) {});
    gossip.meet();
    for (int k = 0; k < kMade; ++k) {
      time->sleep(100ms + rank * 11ms);
      gossip.gradient(0, [&](const Held& held) {
        mix_momentum(held.x, held.x_tilde, held.eta_tau);
        for (std::size_t i = 0; i < kSize; ++i) {
          held.x[i] += moved_by(rank, k, i);
          if (!held.x_tilde.empty()) held.x_tilde[i] += moved_by(rank, k, i);
        }
      });
      gossip.stepped();
      all.events.push_back({time->now(), rank, rank});
    }
    time->sleep(all.end - time->now());
    gossip.pause();
    gossip.access(0, [&](const Held& held) {
      all.x[static_cast<std::size_t>(rank)].assign(held.x.begin(), held.x.end());
      all.x_tilde[static_cast<std::size_t>(rank)].assign(held.x_tilde.begin(), held.x_tilde.end());
    });
    time->sleep(1s);
  });
  return all;
}

template <class T>
std::vector<Plain<T>> again(const Gossiped& all, const A2cid2& momentum) {
  std::vector<Plain<T>> workers;
  for (int rank = 0; rank < 5; ++rank) workers.emplace_back(rank, all.begin[static_cast<std::size_t>(rank)]);
  for (const Event& event : all.events) {
    auto &a = workers[static_cast<std::size_t>(event.a)], &b = workers[static_cast<std::size_t>(event.b)];
    if (event.a == event.b)
      a.gradient(event.at, momentum.eta);
    else
      Plain<T>::average(a, b, event.at, momentum);
  }
  for (auto& worker : workers) worker.mix(all.end, momentum.eta);
  return workers;
}

TEST(VirtualGossip, IsPlainPairGossipToTheBitWithoutMomentum) {
  const Gossiped all = with_events(options_of("ring", 5, false));
  EXPECT_GT(std::ranges::count_if(all.events, [](const Event& event) { return event.a != event.b; }), 50);
  const auto plain = again<float>(all, {});
  for (std::size_t rank = 0; rank < 5; ++rank) EXPECT_EQ(all.x[rank], plain[rank].x()) << rank;
}

TEST(VirtualGossip, IsTheEquationsOfA2cid2EventByEvent) {
  const GossipOptions options = options_of("ring", 5, true);
  const Gossiped all = with_events(options);
  const auto plain = again<double>(all, a2cid2_of(options.rates));
  double drift = 0, plain_drift = 0;  // of the sum of all x + x~, relative to the gradients
  for (std::size_t rank = 0; rank < 5; ++rank) {
    for (std::size_t i = 0; i < kSize; ++i) {
      EXPECT_NEAR(all.x[rank][i], plain[rank].x()[i], 2e-6) << rank;
      EXPECT_NEAR(all.x_tilde[rank][i], plain[rank].x_tilde()[i], 2e-6) << rank;
      double learned = all.begin[rank][i];
      for (int k = 0; k < kMade; ++k) learned += moved_by(static_cast<int>(rank), k, i);
      drift += double{all.x[rank][i]} + double{all.x_tilde[rank][i]} - 2 * learned;
      plain_drift += plain[rank].x()[i] + plain[rank].x_tilde()[i] - 2 * learned;
    }
  }
  EXPECT_LT(std::abs(drift) / (5 * kSize), 1e-6);
  EXPECT_LT(std::abs(plain_drift) / (5 * kSize), 1e-12);
}

// A worker asks at every second gradient, neither more often nor less. With random times this sum
// would have a deviation of 57.
TEST(VirtualGossip, AFixedClockAsksAtEvenTimes) {
  GossipOptions options = options_of("complete", 8, false);
  options.poisson = false;
  double begun = 0;  // at both ends
  for (const GossipStatistics& of : gossiped(options, {}, 200).statistics)
    begun += static_cast<double>(of.pairing.begun);
  EXPECT_NEAR(begun, 2 * 8 * 100, 2 * 8);
}

// A neighbour whose codes are on a grid of steps of 2^100.
struct Liar final : TransportHandler {
  explicit Liar(Transport& transport) : transport(transport) {}
  void connected(int peer) override { transport.send(peer, {.type = FrameType::ask, .round = 2}); }
  void disconnected(int, const std::string&) override {}
  void lost(int, const std::string&) override {}
  std::span<std::byte> place(int, const Frame& frame) override {
    room.resize(frame.length);
    return room;
  }
  void received(int peer, const Frame& frame, std::span<const std::byte>, bool) override {
    if (frame.type == FrameType::abort) refused = true;
    if (frame.type != FrameType::answer || frame.value == 0) return;
    const auto block = transport.buffer(block_bytes(Wire::int8, kSize));
    std::ranges::fill(*block, std::byte{1});
    set_trailer(*block, Wire::int8, {.exponent = 100});
    transport.send(peer,
                   {.type = FrameType::data, .dtype = static_cast<std::uint8_t>(Wire::int8), .round = 2},
                   payload_of(block));
    transport.send(peer, {.type = FrameType::ack, .round = 2});
  }
  Transport& transport;
  std::vector<std::byte> room;
  bool refused = false;
};

TEST(VirtualGossip, CodesOnAGridOutOfRangeAreNotMixed) {
  const auto time = std::make_shared<VirtualTime>(2);
  LocalHub hub(2, {}, {.time = time});
  virtual_workers(*time, 2, [&](int rank) {
    auto transport = hub.endpoint(rank);
    if (rank == 1) {
      Liar liar(*transport);
      transport->start(liar);
      transport->open(0);
      time->sleep(2s);
      transport->stop();
      EXPECT_TRUE(liar.refused);
      return;
    }
    std::vector<std::string> lines;
    const std::vector<float> mine(kSize, 0.5F);
    const GossipOptions options = options_of("ring", 2, true, Wire::int8);
    Gossip gossip(std::move(transport), options, on_host({mine}, *options.algorithm),
                  [&](Level, const std::string& line) { lines.push_back(line); });
    gossip.meet();
    time->sleep(1s);
    gossip.access(0, [&](const Held& held) { EXPECT_TRUE(std::ranges::equal(held.x, mine)); });
    const auto with = gossip.statistics().neighbours[0];
    EXPECT_EQ(std::tuple(with.begun, with.averaged, with.aborted), (std::tuple{1U, 0U, 1U}));
    EXPECT_EQ(lines, std::vector<std::string>{
                         "worker 1 sent block 0 in averaging 2 on a grid out of range: not mixed"});
    time->sleep(2s);
  });
}

constexpr Wire kWires[] = {Wire::fp32, Wire::bf16, Wire::fp16, Wire::int8, Wire::int4};

TEST(VirtualGossip, EveryWireKeepsTheSum) {
  for (const Wire wire : kWires) {
    for (const bool momentum : {false, true}) {
      const End end = gossiped(options_of("ring", 8, momentum, wire), {.moves = 0.1F}, 100);
      EXPECT_LT(end.drift, 1e-6) << name_of(wire);
    }
  }
}

// Some averagings are then in doubt, and are mixed late if the other end has committed them.
TEST(VirtualGossip, EveryWireKeepsTheSumWhereConnectionsBreak) {
  for (const Wire wire : {Wire::fp32, Wire::int8, Wire::int4}) {
    const End end = gossiped(options_of("ring", 6, true, wire),
                             {.moves = 0.1F, .breaks = true, .latency = kGradient / 10}, 200);
    EXPECT_LT(end.drift, 2e-6) << name_of(wire);
    std::uint64_t late = 0;
    for (const GossipStatistics& mine : end.statistics) {
      for (const auto& edge : mine.neighbours) late += edge.late;
    }
    EXPECT_GT(late, 0U);
  }
}

GossipOptions pushing(const std::string& topology, int n, Wire wire = Wire::fp32) {
  return {.rates = push_rates(make_shares(topology, n), 1), .algorithm = pair_push(), .wire = wire};
}

// On a directed graph. A push during a broken connection ends at one of its ends, even if they
// learn of it late.
TEST(VirtualGossip, PushesKeepAllMassAndWhatItWeighs) {
  for (const Wire wire : {Wire::fp32, Wire::bf16, Wire::fp16}) {
    for (const bool breaks : {false, true}) {
      const End end = gossiped(pushing("n-peer-exponential-1", 6, wire),
                               {.moves = 0.1F, .breaks = breaks, .latency = kGradient / 10}, 200);
      EXPECT_LT(end.drift, 2e-6) << name_of(wire);
      EXPECT_NEAR(end.mass, 6, 1e-9) << name_of(wire);
      std::uint64_t aborted = 0;
      for (std::size_t i = 0; i < 6; ++i) {
        for (const auto& edge : end.statistics[i].neighbours) aborted += edge.aborted;
        EXPECT_GT(end.statistics[i].averaged, 100U);
      }
      EXPECT_EQ(aborted > 0, breaks);
    }
  }
}

// A push that was given up is no longer the sender's, until it is known that it failed. Otherwise
// its next pushes would use mass that is gone.
TEST(VirtualGossip, AWeightStaysAboveZeroWherePushesAreGivenUp) {
  const End end = gossiped(pushing("complete", 3, Wire::fp32),
                           {.moves = 0.1F, .stalls = true, .latency = kGradient / 4}, 2000);
  EXPECT_LT(end.drift, 2e-6);
  EXPECT_NEAR(end.mass, 3, 1e-9);
  EXPECT_GT(end.least, 0);
  std::uint64_t in_part = 0;
  for (const auto& edge : end.statistics[0].neighbours) in_part += edge.begun - edge.averaged;
  EXPECT_GT(in_part, 0U);
}

TEST(VirtualGossip, PushPullKeepsTheSumOfWhatIsTrackedAndBringsWorkersTogether) {
  for (const Wire wire : {Wire::fp32, Wire::bf16, Wire::fp16}) {
    GossipOptions options = pushing("n-peer-exponential-1", 6, wire);
    options.algorithm = pair_push_pull();
    for (const bool breaks : {false, true}) {
      const End end = gossiped(options, {.moves = 0.1F, .breaks = breaks, .latency = kGradient / 10}, 200);
      EXPECT_LT(end.tracked, 2e-6) << name_of(wire);
      EXPECT_EQ(end.mass, 6);
      std::uint64_t aborted = 0, late = 0;
      for (const GossipStatistics& mine : end.statistics) {
        for (const auto& edge : mine.neighbours) aborted += edge.aborted, late += edge.late;
      }
      EXPECT_EQ(aborted > 0, breaks);
      EXPECT_EQ(late > 0, breaks);
    }
  }
  GossipOptions options = pushing("n-peer-exponential-1", 8);
  options.algorithm = pair_push_pull();
  EXPECT_LT(distance(gossiped(options, {}, 200).x), 1e-6);
}

TEST(VirtualGossip, PushesBringWorkersToTheirMean) {
  const Begin begin{.common = 1, .own = 0.1F};
  const GossipOptions options = pushing("n-peer-exponential-1", 8);
  const Values x0 = gossiped(options, begin, 0).x, x = gossiped(options, begin, 200).x;
  EXPECT_LT(distance(x), 1e-6);
  for (std::size_t k = 0; k < kSize; ++k) {
    double mean = 0;
    for (const auto& one : x0) mean += one[k] / 8;
    EXPECT_NEAR(x[0][k], mean, 1e-6);
  }
}

TEST(VirtualGossip, PushesNeedAPathFromEachWorkerToEachOther) {
  Schedule schedule{"line", {Graph(3)}};
  schedule.rounds[0].neighbours = {{}, {{0, 0.5}}, {{1, 0.5}}};  // 0 to 1 to 2
  EXPECT_EQ(refusal<UsageError>([&] { push_rates(schedule, 1); }),
            "no path of pushes leads from worker 1 to worker 0");
}

// Workers differ as much as in training, relative to their common part. Modular codes have no last
// bit at which convergence ends.
TEST(VirtualGossip, EveryWireBringsWorkersTogether) {
  const std::map<Wire, double> near{
      {Wire::fp32, 1e-7}, {Wire::bf16, 2e-4}, {Wire::fp16, 3e-5}, {Wire::int8, 1e-6}, {Wire::int4, 1e-5}};
  for (const auto& [wire, bound] : near) {
    for (const bool momentum : {false, true}) {
      const Begin begin{.common = 0.05F, .own = 1e-3F};
      EXPECT_LT(distance(gossiped(options_of("ring", 16, momentum, wire), begin, 300).x), bound)
          << name_of(wire) << (momentum ? " with momentum" : "");
    }
  }
}

// Only one side asks, and each edge is used as often as before.
TEST(VirtualGossip, OnTwoSidesOnlyOneAsks) {
  GossipOptions options = options_of("ring", 8, false);
  options.rates = bipartite(options.rates);
  const End end = gossiped(options, {.moves = 0.1F}, 2000);
  EXPECT_LT(end.drift, 1e-6);
  double chi_square = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    const GossipStatistics& mine = end.statistics[i];
    EXPECT_EQ(mine.pairing.asked > 0, i % 2 == 1) << i;
    const double expected = 0.5 * 2000;  // rate / 2 (p_ij + p_ji)
    const auto with =
        std::ranges::find(mine.neighbours, static_cast<int>((i + 1) % 8), &GossipStatistics::Neighbour::rank);
    const auto found = static_cast<double>(with->averaged);
    chi_square += (found - expected) * (found - expected) / expected;
  }
  EXPECT_LT(chi_square, 26.1) << "with 8 degrees of freedom once in 1000";
}

// The number of gradients between two averagings on an edge, for a Poisson clock.
TEST(VirtualGossip, GapAndDistanceOfEachEdgeAreCounted) {
  const End end = gossiped(options_of("ring", 8, false), {}, 2000);
  for (const GossipStatistics& mine : end.statistics) {
    EXPECT_NEAR(static_cast<double>(mine.averaged) / static_cast<double>(mine.gradients), 1, 0.1);
    for (const auto& edge : mine.neighbours) {
      EXPECT_NEAR(edge.gap, 2, 0.25);   // an edge is used half as often as a worker averages
      EXPECT_GT(edge.longest_gap, 8U);  // among 1000, a longer one has a probability of 1e-8
      EXPECT_LT(edge.longest_gap, 50U);
      EXPECT_LT(edge.distance, 1e-6);  // they have come together
    }
  }
}

// The distance at the first averaging, at which each worker still had its first values.
TEST(VirtualGossip, TheDistanceOfAnEdgeIsThatOfWhatWasSent) {
  for (const Wire wire : {Wire::fp32, Wire::fp16}) {
    GossipOptions options = options_of("complete", 2, false, wire);
    options.rates.rate = 0.2;
    const Values begin = gossiped(options, {}, 0).x;
    End end;
    for (int gradients = 1; end.statistics.empty() || end.statistics[0].averaged == 0; ++gradients)
      end = gossiped(options, {}, gradients);
    ASSERT_EQ(end.statistics[0].averaged, 1U);
    double squares = 0;
    for (std::size_t k = 0; k < kSize; ++k)
      squares += (double{begin[0][k]} - begin[1][k]) * (double{begin[0][k]} - begin[1][k]);
    for (const GossipStatistics& mine : end.statistics)
      EXPECT_NEAR(mine.neighbours[0].distance, std::sqrt(squares / kSize), wire == Wire::fp32 ? 1e-6 : 1e-3);
  }
}

// Without momentum the slowest mode of a ring decays as e^(-t / (2 chi1)). (The authors' order,
// which sends x without its latest momentum, makes it 1.7 to 2.9 times faster.)
TEST(VirtualGossip, MomentumIsTenTimesFasterOnARingOf64) {
  const double plain = decay("ring", 64, false, 400, 800);
  EXPECT_NEAR(plain, 1 / (2 * a2cid2_of(pair_rates(make_schedule("ring", 64), 1)).chi1), 0.1 * plain);
  EXPECT_GT(decay("ring", 64, true, 100, 400), 10 * plain);
}

// Each edge is used as often as the rates say, if all train equally fast and if one is four times
// slower. An edge's own count then follows from its ends' gradients. The test is Pearson's
// chi-square with as many degrees of freedom as edges. A chi square of so many degrees of freedom
// exceeds this value once in 1000 (Wilson & Hilferty 1931).
double once_in_1000(double degrees) {
  const double part = 2 / (9 * degrees);
  return degrees * std::pow(1 - part + 3.09 * std::sqrt(part), 3);
}

// In static-exponential, one neighbour in five is met twice as often as the others.
TEST(VirtualGossip, EveryEdgeIsUsedAsOftenAsTheTheoryAssumes) {
  for (const auto& [topology, n] : {std::pair("ring", 4), {"torus", 9}, {"static-exponential", 8}}) {
    for (const int slower : {1, 4}) {
      const GossipOptions options{.rates = pair_rates(make_schedule(topology, n), 1), .seed = 5};
      const auto time = std::make_shared<VirtualTime>(n);
      LocalHub hub(n, {}, virtual_network(time, 1e9, 50us));
      std::vector<GossipStatistics> statistics(static_cast<std::size_t>(n));
      virtual_workers(*time, n, [&](int rank) {
        Gossip gossip(hub.endpoint(rank), options, on_host({std::vector<float>(kSize)}, *options.algorithm),
                      [](Level, const std::string&) {});
        gossip.meet();
        const Time end = time->now() + 40s;
        while (time->now() < end) {
          time->sleep((rank == 0 ? slower : 1) * 8ms);
          gossip.stepped();
        }
        gossip.pause();
        statistics[static_cast<std::size_t>(rank)] = gossip.statistics();
        time->sleep(1s);
      });
      // rate / 2 p_ij of i's gradients.
      std::map<std::pair<int, int>, double> expected;
      for (int i = 0; i < n; ++i) {
        const auto gradients = static_cast<double>(statistics[static_cast<std::size_t>(i)].gradients);
        for (const Neighbour& j : options.rates.asks[static_cast<std::size_t>(i)])
          expected[std::minmax(i, j.rank)] += 0.5 * j.weight * gradients;
      }
      double chi_square = 0;
      for (const auto& [edge, often] : expected) {
        const auto& mine = statistics[static_cast<std::size_t>(edge.first)].neighbours;
        const auto with = std::ranges::find(mine, edge.second, &GossipStatistics::Neighbour::rank);
        const auto found = static_cast<double>(with->averaged);
        chi_square += (found - often) * (found - often) / often;
      }
      EXPECT_LT(chi_square, once_in_1000(static_cast<double>(expected.size()))) << topology << " " << slower;
    }
  }
}

// A2CiD2's constants suit the rate that was asked for. On a network that is too slow for it, stalls
// or loses, the workers stay as near to each other as without momentum.
TEST(VirtualGossip, MomentumIsStableWhereTheAskedRateIsNotReached) {
  struct Case {
    int n;
    double asked;
    Begin begin;
    Wire wire = Wire::fp32;
  };
  const double slow = 16'000, slower = 6'000;  // bytes per second
  for (const Case& c :
       {Case{16, 1, {.rate = slower}}, Case{16, 4, {.rate = slow}}, Case{32, 1, {.rate = slow}},
        Case{32, 10, {.rate = slow}}, Case{64, 3, {.rate = slow}}, Case{32, 1, {.stalls = true}},
        Case{32, 1, {.breaks = true}}, Case{32, 2, {.rate = slow}, Wire::int8},
        Case{64, 1, {.rate = slow}, Wire::int4}}) {
    GossipOptions options{.rates = pair_rates(make_schedule("ring", c.n), c.asked), .wire = c.wire};
    Begin begin = c.begin;
    begin.moves = 0.1F;
    const End plain = gossiped(options, begin, 300);
    const A2cid2 papers = a2cid2_of(options.rates);
    options.algorithm = pair_averaging(c.wire == Wire::int4 ? at_most(papers, 1) : papers);
    const End with_momentum = gossiped(options, begin, 300);
    EXPECT_LT(distance(with_momentum.x), 1.25 * distance(plain.x)) << c.n << " at rate " << c.asked;
    EXPECT_LT(with_momentum.drift, 1e-5) << c.n << " at rate " << c.asked;
  }
}

// Late answers, for which no worker waits any more: the averaging is refused, and both ends go on.
TEST(VirtualGossip, LateAnswersAreRefusedOrTaken) {
  GossipOptions options{.rates = pair_rates(make_schedule("complete", 3), 1), .seed = 5, .patience = 300ms};
  options.algorithm = pair_averaging(a2cid2_of(options.rates));
  const auto time = std::make_shared<VirtualTime>(3);
  LocalHub hub(3, {}, {.time = time});
  double kept = 0;  // the sum of all (x + x~) / 2, minus the gradients
  const auto half_sum = [](std::span<float> x, std::span<float> x_tilde) {
    return (std::accumulate(x.begin(), x.end(), 0.0) + std::accumulate(x_tilde.begin(), x_tilde.end(), 0.0)) /
           2;
  };
  virtual_workers(*time, 3, [&](int rank) {
    std::mt19937_64 random(static_cast<std::uint64_t>(rank));
    std::normal_distribution<float> normal;
    Gossip gossip(hub.endpoint(rank), options, on_host({std::vector<float>(kSize)}, *options.algorithm),
                  [](Level, const std::string&) {});
    gossip.meet();
    const auto train_for = [&](Duration duration, Duration late) {
      int made = 0;
      for (const Time end = time->now() + duration; time->now() < end; time->sleep(kGradient)) {
        if (rank == 0) hub.delay(0, 1, ++made % 5 == 0 ? late : Duration(0));
        gossip.gradient(0, [&](const Held& held) {
          mix_momentum(held.x, held.x_tilde, held.eta_tau);
          const auto x = held.x, x_tilde = held.x_tilde;
          kept += half_sum(x, x_tilde);
          for (std::size_t k = 0; k < kSize; ++k) {
            const float learned = normal(random);
            x[k] += learned;
            x_tilde[k] += learned;
          }
          kept -= half_sum(x, x_tilde);
        });
        gossip.stepped();
      }
    };
    train_for(60s, 250ms);  // longer than the time limit of an answer after prompt ones
    const GossipStatistics delayed = gossip.statistics();
    if (rank == 1) {
      EXPECT_GT(delayed.pairing.unanswered, 10U);
    }
    EXPECT_GT(delayed.averaged, 100U);
    train_for(60s, {});
    EXPECT_GT(gossip.statistics().averaged, delayed.averaged + 300);
    gossip.pause();
    // One end of an averaging that took too long may know its outcome before the other.
    time->sleep(1s);
    gossip.access(0, [&](const Held& held) { kept += half_sum(held.x, held.x_tilde); });
    time->sleep(1s);
  });
  EXPECT_NEAR(kept, 0, 0.01);
}

// A neighbour tells far numbers of averagings and gradients, and takes part again: the edge goes
// on, and the count of all gradients is right.
TEST(VirtualGossip, FarNumbersAreNotBelieved) {
  const GossipOptions options{.rates = pair_rates(make_schedule("complete", 2), 1), .seed = 5};
  const auto time = std::make_shared<VirtualTime>(2);
  LocalHub hub(2, {}, {.time = time});
  const auto lie =
      std::make_shared<const std::vector<std::uint64_t>>(std::vector<std::uint64_t>{0, 1ULL << 32});
  virtual_workers(*time, 2, [&](int rank) {
    auto over = hub.endpoint(rank);
    Transport& transport = *over;
    Gossip gossip(std::move(over), options, on_host({std::vector<float>(kSize)}, *options.algorithm),
                  [](Level, const std::string&) {});
    gossip.meet();
    const auto train = [&] {
      for (int k = 0; k < 100; ++k) {
        gossip.gradient(0, [](const Held&) {});
        gossip.stepped();
        time->sleep(kGradient);
      }
      return gossip.statistics().averaged;
    };
    const std::uint64_t before = train();
    if (rank == 1) {
      transport.send(0, {.type = FrameType::ask, .round = (1ULL << 32) - 2});
      for (const FrameType type : {FrameType::ack, FrameType::answer, FrameType::ask})
        transport.send(0, {.type = type, .round = 2}, {lie, std::as_bytes(std::span(*lie))});
    }
    EXPECT_GT(train(), before + 50) << rank;
    time->sleep(1s);
    EXPECT_LE(gossip.statistics().gradients_of_all, 400U) << rank;
  });
}

// An averaging takes five times the patience for one without progress.
TEST(VirtualGossip, WhatGoesOnIsNotGivenUp) {
  constexpr std::size_t kBlocks = 4, kBlock = 100'000;
  const Schedule complete = make_schedule("complete", 3);
  for (const bool pushes : {false, true}) {
    const GossipOptions options{.rates = pushes ? push_rates(complete, 1) : pair_rates(complete, 1),
                                .algorithm = pushes ? pair_push() : pair_averaging()};
    const double seconds = 5 * std::chrono::duration<double>(options.patience).count();
    const auto time = std::make_shared<VirtualTime>(3);
    LocalHub hub(3, {}, virtual_network(time, kBlocks * kBlock * sizeof(float) / seconds));
    virtual_workers(*time, 3, [&](int rank) {
      Gossip gossip(hub.endpoint(rank), options,
                    on_host(std::vector(kBlocks, std::vector<float>(kBlock, static_cast<float>(rank))),
                            *options.algorithm),
                    [](Level, const std::string& said) {
                      EXPECT_EQ(said.find("is given up"), std::string::npos) << said;
                    });
      gossip.meet();
      for (int k = 0; k < 1000; ++k) {
        time->sleep(kGradient);
        gossip.stepped();
      }
      gossip.pause();
      const GossipStatistics all = gossip.statistics();
      EXPECT_GE(all.averaged, 5U) << pushes;
      // But one that is answered too late, while the answer waits for a chunk, may be refused.
      for (const GossipStatistics::Neighbour& j : all.neighbours)
        EXPECT_EQ(j.aborted, kBlocks * (j.begun - j.averaged)) << "one is under way; pushes: " << pushes;
      time->sleep(20s);  // the others may not have paused yet
    });
  }
}

// All pause after every gradient, for longer than one takes. The clock's events of that time come
// later.
TEST(VirtualGossip, PausesCostNoAveragings) {
  const GossipOptions options = options_of("complete", 4, false);
  const auto time = std::make_shared<VirtualTime>(4);
  LocalHub hub(4, {}, {.time = time});
  double averaged = 0;
  constexpr int kGradients = 200;
  virtual_workers(*time, 4, [&](int rank) {
    Gossip gossip(hub.endpoint(rank), options, on_host({std::vector<float>(kSize)}, *options.algorithm),
                  [](Level, const std::string&) {});
    gossip.meet();
    for (int k = 0; k < kGradients; ++k) {
      time->sleep(kGradient);
      gossip.stepped();
      gossip.pause();
      time->sleep(3 * kGradient);
      gossip.resume();
    }
    averaged += static_cast<double>(gossip.statistics().averaged);
    time->sleep(1s);
  });
  EXPECT_NEAR(averaged / (4 * kGradients), 1, 0.15);
}

// A neighbour stands still in the middle of an averaging, and no worker wants to wait for it.
TEST(VirtualGossip, AWaitForTheLastAveragingIsInterrupted) {
  bool enough = false;
  const GossipOptions options{.rates = pair_rates(make_schedule("complete", 2), 2),
                              .patience = 1h,
                              .interrupted = [&] { return enough; }};
  const auto time = std::make_shared<VirtualTime>(2);
  LocalHub hub(2, {}, {.time = time});
  hub.delay(0, 1, 30ms);  // so that one can be met in flight
  virtual_workers(*time, 2, [&](int rank) {
    Gossip gossip(hub.endpoint(rank), options, on_host({std::vector<float>(kSize)}, *options.algorithm),
                  [](Level, const std::string&) {});
    gossip.meet();
    const auto under_way = [&] {
      const auto with = gossip.statistics().neighbours[0];
      return with.begun > with.averaged;
    };
    const auto train = [&] {
      time->sleep(1ms);
      gossip.stepped();
    };
    if (rank == 1) {
      while (!enough) train();
      time->sleep(1s);
      return;
    }
    do {
      hub.resume(1);
      train();
      hub.pause(1);
      time->sleep(1ms);
    } while (!under_way());
    enough = true;
    gossip.pause();
    EXPECT_TRUE(under_way());
    hub.resume(1);
    time->sleep(1s);
  });
}

}  // namespace
}  // namespace starling
