// Gossip beside threads that train: over the local transport, which injects faults.
#include "starling/gossip/gossip.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <future>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "starling/topology/schedules.h"
#include "starling/transport/local/local.h"
#include "tests/eventually.h"
#include "tests/exchange/deaf.h"
#include "tests/exchange/one_thread.h"
#include "tests/gossip/held.h"
#include "tests/log_lines.h"
#include "tests/refusal.h"
#include "tests/threads.h"

namespace starling {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kSizes[] = {3000, 500};

// A worker that trains at its own pace: each gradient moves every value randomly.
struct Trainer {
  Trainer(std::unique_ptr<Transport> transport, const GossipOptions& options)
      : rank(transport->rank()),
        random(static_cast<std::uint64_t>(rank) + 1),
        gossip(std::move(transport), options,
               on_host({std::vector<float>(kSizes[0], 0.5F), std::vector<float>(kSizes[1], 0.5F)},
                       *options.algorithm),
               lines.log(Level::debug)) {}

  void gradient(float size) {
    for (int b = 0; b < 2; ++b) {
      gossip.gradient(b, [&](const Held& held) {
        const Added added = add_gradient(held, [&](std::size_t) { return size * change(random); });
        learned += added.x, tracked += added.y;
      });
    }
    gossip.stepped();
  }
  std::vector<float> values() {
    std::vector<float> all;
    for (int b = 0; b < 2; ++b) {
      gossip.gradient(b, [&](const Held& held) {
        mix_momentum(held.x, held.x_tilde, held.eta_tau);
        all.insert(all.end(), held.x.begin(), held.x.end());
      });
    }
    return all;
  }

  bool said(const std::string& what) { return lines.text().find(what) != std::string::npos; }

  const int rank;
  std::mt19937_64 random;
  std::normal_distribution<float> change;
  double learned = 0, tracked = 0;
  LogLines lines;
  Gossip gossip;
};

struct Trainers : OnThreads<Trainer> {
  explicit Trainers(const std::string& topology, int n, GossipOptions options = {}, bool momentum = true)
      : hub(n) {
    const double rate = options.rates.rate;
    options.rates = options.algorithm->direction(true).receive ? pair_rates(make_schedule(topology, n), rate)
                                                               : push_rates(make_shares(topology, n), rate);
    if (momentum) options.algorithm = pair_averaging(a2cid2_of(options.rates));
    options.seed = 5;
    for (int rank = 0; rank < n; ++rank)
      workers.push_back(std::make_unique<Trainer>(hub.endpoint(rank), options));
    everyone([](Trainer& t) { t.gossip.meet(); });
  }
  void train(int gradients, float size, std::chrono::microseconds pace = 500us) {
    everyone([&](Trainer& t) {
      for (int k = 0; k < gradients; ++k) {
        t.gradient(size);
        std::this_thread::sleep_for(pace);
      }
    });
  }
  // These workers train until happened() is true. The time depends on the machine.
  template <class F>
  ::testing::AssertionResult train_until(const std::vector<int>& ranks, F&& happened) {
    std::atomic<bool> stop = false;
    std::vector<std::thread> threads;
    for (const int i : ranks) {
      threads.emplace_back([&, i] {
        while (!stop) {
          (*this)[i].gradient(0.1F);
          std::this_thread::sleep_for(1ms);
        }
      });
    }
    const auto has_happened = eventually(happened);
    stop = true;
    for (auto& thread : threads) thread.join();
    return has_happened;
  }
  std::uint64_t averaged(int i) { return (*this)[i].gossip.statistics().averaged; }
  // These workers train until each of them has averaged so many times more.
  ::testing::AssertionResult average(const std::vector<int>& ranks, std::uint64_t more) {
    std::vector<std::uint64_t> enough;
    for (const int i : ranks) enough.push_back(averaged(i) + more);
    return train_until(ranks, [&] {
      return std::ranges::equal(ranks, enough, [&](int i, std::uint64_t n) { return averaged(i) > n; });
    });
  }
  double sum() {
    double sum = 0;
    for (auto& one : workers) {
      for (int b = 0; b < 2; ++b) one->gossip.gradient(b, [&](const Held& held) { sum += kept_sum(held); });
    }
    return sum;
  }
  // Call it while gossip stands still. One end of an averaging that took too long may know its
  // outcome before the other.
  void expect_kept(double before) {
    double drift = 0;
    EXPECT_TRUE(eventually([&] {
      drift = sum() - learned() - before;
      return std::abs(drift) < 0.01;
    })) << "the sum has changed by "
        << drift;
  }
  double learned() const {
    double sum = 0;
    for (const auto& one : workers) sum += one->learned;
    return sum;
  }
  double distance() {
    std::vector<std::vector<float>> x;
    for (auto& one : workers) x.push_back(one->values());
    return rms_to_mean({x.begin(), x.end()});
  }
  LocalHub hub;
};

TEST(Gossip, TheSumIsKeptWhileEverybodyTrains) {
  for (const bool momentum : {false, true}) {
    Trainers flock("ring", 5, {.rates = {.rate = 3, .asks = {}}}, momentum);
    const double before = flock.sum();
    flock.train(200, 0.1F);
    for (auto& one : flock.workers) EXPECT_EQ(one->gossip.statistics().gradients, 200U);
    EXPECT_TRUE(flock.average({0, 1, 2, 3, 4}, 10));
    flock.everyone([](Trainer& t) { t.gossip.pause(); });
    flock.expect_kept(before);
  }
}

TEST(Gossip, WhatIsPushedIsKeptWhileEverybodyTrains) {
  for (const auto& algorithm : {pair_push(), pair_push_pull()}) {
    GossipOptions options{.algorithm = algorithm};
    options.rates.rate = 2;
    Trainers flock("complete", 4, options, false);
    flock.train(300, 0.1F);
    flock.everyone([](Trainer& t) { t.gossip.pause(); });
    double mass = 0, y = 0;
    EXPECT_TRUE(eventually([&] {
      mass = y = 0;
      for (auto& one : flock.workers) {
        y -= one->tracked;
        for (int b = 0; b < 2; ++b) {
          one->gossip.access(b, [&](const Held& held) {
            mass += held.weight;
            y += std::accumulate(held.y.begin(), held.y.end(), 0.0);
          });
        }
      }
      return std::abs(mass - 2 * 4) < 1e-9 && std::abs(y) < 0.01;
    })) << mass
        << " " << y;
    EXPECT_GT(flock.averaged(0), 0U);
  }
}

TEST(Gossip, BringsWorkersTogether) {
  Trainers flock("static-exponential", 6, {.rates = {.rate = 2, .asks = {}}});
  flock.train(3, 1);
  const double distance = flock.distance();
  for (int k = 0; k < 100 && flock.distance() > 1e-3 * distance; ++k) flock.train(50, 0);
  flock.everyone([](Trainer& t) { t.gossip.pause(); });
  EXPECT_LT(flock.distance(), 1e-3 * distance);
}

TEST(Gossip, NarrowWiresKeepTheSum) {
  for (const Wire wire : {Wire::bf16, Wire::fp16}) {
    Trainers flock("ring", 4, {.rates = {.rate = 2, .asks = {}}, .wire = wire});
    const double before = flock.sum();
    flock.train(100, 0.1F);
    flock.everyone([](Trainer& t) { t.gossip.pause(); });
    flock.expect_kept(before);
  }
}

TEST(Gossip, APauseStopsIt) {
  Trainers flock("complete", 4, {.rates = {.rate = 4, .asks = {}}});
  flock.train(50, 0.1F);
  flock.everyone([](Trainer& t) { t.gossip.pause(); });
  std::vector<std::vector<float>> before;
  for (auto& one : flock.workers) before.push_back(one->values());
  std::this_thread::sleep_for(100ms);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(flock[i].values(), before[static_cast<std::size_t>(i)]);
  flock.everyone([](Trainer& t) { t.gossip.resume(); });
  EXPECT_TRUE(flock.average({0, 1, 2, 3}, 0));
}

TEST(Gossip, WhoSleepsDelaysNobodyElse) {
  Trainers flock("complete", 4, {.rates = {.rate = 2, .asks = {}}, .patience = 100ms});
  flock.train(50, 0.1F);
  flock.hub.pause(3);
  EXPECT_TRUE(flock.average({0, 1, 2}, 100));
  for (int i = 0; i < 3; ++i)
    // It is asked once.
    EXPECT_LT(10 * flock[i].gossip.statistics().pairing.unanswered, flock.averaged(i));
  flock.hub.resume(3);
  EXPECT_TRUE(flock.average({0, 1, 2, 3}, 50));
  flock.everyone([](Trainer& t) { t.gossip.pause(); });
  flock.expect_kept(0.5 * 4 * 3500);
}

TEST(Gossip, ADeathEndsOneAveragingAndNothingElse) {
  Trainers flock("complete", 4, {.rates = {.rate = 2, .asks = {}}});
  flock.train(50, 0.1F);
  flock.hub.kill(3);
  EXPECT_TRUE(flock.average({0, 1, 2}, 50));
  for (int i = 0; i < 3; ++i) flock[i].gossip.pause();
  EXPECT_TRUE(flock[0].said("worker 3 is gone"));
}

TEST(Gossip, ADeathBeforeAllHaveMetEndsTheWait) {
  Deaf deaf;
  LocalHub hub(2);
  const auto dies = hub.endpoint(1);
  dies->start(deaf);
  hub.pause(1);
  auto over = hub.endpoint(0);
  Transport& transport = *over;
  Trainer zero(std::move(over), {.rates = pair_rates(make_schedule("complete", 2), 1), .meet = 1h});
  std::promise<void> opened;
  transport.open(1);
  transport.post([&] { opened.set_value(); });
  opened.get_future().wait();
  hub.kill(1);
  EXPECT_EQ(refusal([&] { zero.gossip.meet(); }).find("worker 0: worker 1 is gone before all have met ("),
            0U);
}

TEST(Gossip, DamageIsNotMixed) {
  Trainers flock("ring", 3, {.rates = {.rate = 3, .asks = {}}});
  const double before = flock.sum();
  flock.train(50, 0.1F);
  // The damaged frame may also be a request: that is answered all the same.
  EXPECT_TRUE(flock.train_until({0, 1, 2}, [&] {
    flock.hub.corrupt_next(0, 1);
    return flock[1].said("worker 0 sent a damaged block");
  }));
  flock.everyone([](Trainer& t) { t.gossip.pause(); });
  flock.expect_kept(before);
}

TEST(Gossip, AConnectionThatBreaksIsMendedAndTheSumIsKept) {
  Trainers flock("ring", 3, {.rates = {.rate = 3, .asks = {}}});
  const double before = flock.sum();
  std::atomic<bool> stop = false;
  std::thread vandal([&] {
    while (!stop) {
      flock.hub.sever(0, 1);
      std::this_thread::sleep_for(3ms);
      flock.hub.mend(0, 1);
      std::this_thread::sleep_for(7ms);
    }
  });
  flock.train(300, 0.1F);
  stop = true;
  vandal.join();
  std::this_thread::sleep_for(100ms);
  flock.everyone([](Trainer& t) { t.gossip.pause(); });
  flock.expect_kept(before);
}

}  // namespace
}  // namespace starling
