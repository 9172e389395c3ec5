// The model of asynchronous gossip, against independent results, and against gossip itself on a
// virtual network.
#include "starling/plan/asynchronous.h"

#include <chrono>

#include <gtest/gtest.h>

#include "starling/gossip/gossip.h"
#include "starling/topology/schedules.h"
#include "tests/refusal.h"
#include "tests/virtual_workers.h"

namespace starling {
namespace {

constexpr double kCard = 1e8, kDelay = 50e-6, kOwn = 0.020;

Network hosts_alike(int n) {
  Network network;
  for (int i = 0; i < n; ++i) network.host_of.push_back(i);
  network.hosts.resize(static_cast<std::size_t>(n));
  for (Host& host : network.hosts) host.send = host.receive = kCard;
  network.latency = kDelay;
  return network;
}

// `link`: the time of all blocks over an interface.
Work alike_work(double link, double gradient = kOwn) {
  Work work;
  work.block_bytes = work.mean_bytes = {link * kCard / 4, link * kCard * 3 / 4};
  work.compute = {
      {{0}, {gradient / 2}, {{gradient / 4}, {gradient / 8}}, {{gradient / 16}, {gradient / 16}}}};
  return work;
}

AsynchronousForecast on_ring(int n, double link, double rate) {
  return simulate_asynchronous(hosts_alike(n), alike_work(link), pair_rates(make_schedule("ring", n), rate),
                               {.iterations = 1000});
}

TEST(Asynchronous, AStepIsTheWorkersOwnWhateverTheNetwork) {
  for (const double link : {1e-6, 1.0}) {
    const AsynchronousForecast outcome = on_ring(8, link, 1);
    EXPECT_NEAR(outcome.step.step, kOwn, 1e-9);
    EXPECT_EQ(outcome.step.own, outcome.step.step);
    EXPECT_EQ(outcome.step.waited, 0);
  }
}

TEST(Asynchronous, WhereLinksAreFastAllThatIsAskedForIsAveraged) {
  for (const double rate : {0.5, 1.0, 4.0}) {
    const AsynchronousForecast outcome = on_ring(8, 1e-4, rate);
    EXPECT_NEAR(outcome.rate, rate, 0.05 * rate);
    // A request, an answer, the blocks, and their acknowledgement; and the answer to a refused
    // worker.
    EXPECT_NEAR(outcome.taken, 4 * kDelay + 1e-4, 0.5 * kDelay);
    EXPECT_NEAR(outcome.step.busiest.seconds, rate * 1e-4, 0.2 * rate * 1e-4);
  }
}

TEST(Asynchronous, TwoWorkersOnASlowLinkAverageOneTimeAfterTheOther) {
  const AsynchronousForecast outcome = on_ring(2, 5 * kOwn, 4);
  EXPECT_NEAR(outcome.taken, 5 * kOwn + 4 * kDelay, kDelay);
  EXPECT_NEAR(outcome.rate, kOwn / outcome.taken, 0.03 * outcome.rate);
  EXPECT_NEAR(outcome.step.busiest.seconds, kOwn, 0.03 * kOwn);
}

// Worker 0 takes four times as long, and the others average with each other as often as before.
TEST(Asynchronous, WorkersOfDifferentSpeedKeepTheirOwn) {
  Work work = alike_work(1e-3);
  work.compute = {alike_work(1e-3, 4 * kOwn).compute[0], work.compute[0], work.compute[0], work.compute[0]};
  const AsynchronousForecast outcome = simulate_asynchronous(
      hosts_alike(4), work, pair_rates(make_schedule("complete", 4), 1), {.iterations = 400});
  EXPECT_NEAR(outcome.step.step, kOwn * 7 / 4, 1e-9);
  EXPECT_NEAR(outcome.step.low, kOwn, 1e-9);  // of the workers' single steps
  EXPECT_NEAR(outcome.step.high, 4 * kOwn, 1e-9);
  EXPECT_GT(outcome.rate, 1);  // relative to the slow one's gradients there are more
}

// A worker that takes hours beside others that take milliseconds: they go on until it is done.
TEST(Asynchronous, ASimulationHasABound) {
  Work work = alike_work(1e-3);
  work.compute = {alike_work(1e-3, 1e4).compute[0], work.compute[0], work.compute[0], work.compute[0]};
  const PairRates rates = pair_rates(make_schedule("complete", 4), 1);
  EXPECT_EQ(
      refusal<UsageError>([&] {
        simulate_asynchronous(hosts_alike(4), work, rates, {.iterations = 40, .most_events = 100'000});
      }),
      "simulate: more than 100000 events, because workers differ too much in speed, or there are too many "
      "workers, blocks, iterations or steps between exchanges");
  EXPECT_EQ(refusal([&] { simulate_asynchronous(hosts_alike(4), alike_work(1e-3), rates, {}); }), "accepted");
}

TEST(Asynchronous, OnOneHostBlocksCrossMemory) {
  Network network = hosts_alike(4);
  network.host_of.assign(4, 0);
  network.hosts.resize(1);
  network.inside_latency = 1e-6;
  network.inside_rate = 1e9;
  const AsynchronousForecast outcome = simulate_asynchronous(
      network, alike_work(1e-2), pair_rates(make_schedule("ring", 4), 1), {.iterations = 500});
  EXPECT_NEAR(outcome.taken, 1e-3 + 4e-6, 2e-6);
  EXPECT_EQ(outcome.step.busiest.host, -1);
}

TEST(Asynchronous, AGraphOfOtherWorkersIsRefused) {
  EXPECT_EQ(refusal<UsageError>([] {
              simulate_asynchronous(hosts_alike(4), alike_work(1), pair_rates(make_schedule("ring", 5), 1));
            }),
            "simulate: the graph is for 5 workers, and there are 4");
}

// The real gossip at the network's limit: averagings of a worker per gradient of its own.
double real_rate(int n, double link, double rate, int gradients) {
  const auto time = std::make_shared<VirtualTime>(n);
  LocalHub hub(n, {}, virtual_network(time, kCard, of_seconds(kDelay)));
  const GossipOptions options{.rates = pair_rates(make_schedule("ring", n), rate),
                              .patience = std::chrono::seconds(60)};
  double averaged = 0;  // one worker at a time adds to it
  virtual_workers(*time, n, [&](int rank) {
    const auto values = static_cast<std::size_t>(link * kCard / 4 / sizeof(float));
    Gossip gossip(hub.endpoint(rank), options,
                  on_host({std::vector<float>(values), std::vector<float>(3 * values)}, *options.algorithm),
                  [](Level, const std::string&) {});
    gossip.meet();
    for (int k = 0; k < gradients; ++k) {
      time->sleep(of_seconds(kOwn));
      gossip.stepped();
    }
    averaged += static_cast<double>(gossip.statistics().averaged);
    gossip.pause();
    time->sleep(std::chrono::seconds(5));
  });
  return averaged / n / gradients;
}

TEST(Asynchronous, ItSaysWhatGossipOnSuchANetworkDoes) {
  for (const double link : {0.2, 1.0, 3.0}) {  // of a gradient
    for (const double rate : {1.0, 4.0}) {
      const double real = real_rate(6, link * kOwn, rate, 400);
      EXPECT_NEAR(on_ring(6, link * kOwn, rate).rate, real, 0.06 * real) << link << " " << rate;
    }
  }
}

}  // namespace
}  // namespace starling
