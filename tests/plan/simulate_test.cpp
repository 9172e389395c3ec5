#include "starling/plan/simulate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "starling/plan/all_reduce.h"
#include "starling/topology/schedules.h"
#include "tests/plan/closed_forms.h"
#include "tests/refusal.h"

namespace starling {
namespace {

constexpr double kF = 0.010, kRate = 1e9;

// n workers, `per_host` on each host.
Network even_network(int n, int per_host = 1, double latency = 0) {
  Network network;
  for (int i = 0; i < n; ++i) network.host_of.push_back(i / per_host);
  network.hosts.resize(static_cast<std::size_t>((n + per_host - 1) / per_host));
  for (Host& host : network.hosts) host.send = host.receive = kRate;
  network.latency = latency;
  network.inside_rate = 1e12;
  return network;
}

// Constant times; `c` is each block's time on a link.
Work even_work(const std::vector<double>& b, const std::vector<double>& u, const std::vector<double>& c) {
  Work work;
  for (double seconds : c) work.block_bytes.push_back(seconds * kRate);
  work.mean_bytes = work.block_bytes;
  Compute compute{{0}, {kF}, {}, {}};
  for (double seconds : b) compute.backward.push_back({seconds});
  for (double seconds : u) compute.update.push_back({seconds});
  work.compute = {compute};
  return work;
}

double sum(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

struct Case {
  std::vector<double> b, u, c;
};
// Link times from 0.2 to 3 times the rest; one and many blocks, equal and unequal ones.
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const double link : {0.2, 0.5, 0.8, 1.0, 1.25, 2.0, 3.0}) {
    for (const int blocks : {1, 2, 10}) {
      Case& one = all.emplace_back();
      for (int k = 0; k < blocks; ++k) {
        const double share = 2.0 * (k + 1) / blocks / (blocks + 1);
        one.b.push_back(0.020 / blocks);
        one.u.push_back(0.002 * share);
        one.c.push_back(0.032 * link * share);
      }
    }
  }
  return all;
}

TEST(Simulate, CtaIsItsClosedForm) {
  for (const Case& one : cases()) {
    const double wanted = step_ahead(kF, sum(one.b), one.u, one.c);
    for (const char* schedule : {"one-peer-exponential", "od-equidyn"}) {
      const Forecast outcome =
          simulate(even_network(8), even_work(one.b, one.u, one.c), make_schedule(schedule, 8), Mixing::ahead,
                   {.iterations = 220, .warm_up = 20});
      // If links decide and blocks are few, the first block of a round shares the link with the
      // last one of the round before, which goes to another worker.
      EXPECT_NEAR(outcome.step, wanted, (one.b.size() == 2 ? 0.015 : 0.005) * wanted)
          << schedule << ", " << one.b.size() << " blocks, link " << sum(one.c);
      EXPECT_NEAR(outcome.own, kF + sum(one.b) + sum(one.u), 1e-12);
      EXPECT_NEAR(outcome.waited, outcome.step - outcome.own, 0.01 * wanted);
    }
  }
}

TEST(Simulate, AtcIsItsClosedForm) {
  for (const Case& one : cases()) {
    const double wanted = step_inside(kF, sum(one.b), one.u, one.c);
    const Forecast outcome = simulate(even_network(8), even_work(one.b, one.u, one.c),
                                      make_schedule("one-peer-exponential", 8), Mixing::inside);
    EXPECT_NEAR(outcome.step, wanted, 1e-9) << one.b.size() << " blocks, link " << sum(one.c);
    EXPECT_GE(outcome.step, kF + sum(one.b) + std::max(sum(one.u), sum(one.c)));
  }
}

TEST(Simulate, AllReduceIsItsClosedForm) {
  for (const Case& one : cases()) {
    const Work work = even_work(one.b, one.u, one.c);
    const Network network = even_network(6);
    std::vector<double> c;
    for (double bytes : work.mean_bytes) c.push_back(2 * 5.0 / 6 * bytes / kRate);
    EXPECT_NEAR(simulate_all_reduce(network, work).step, all_reduce_step(kF, one.b, c, sum(one.u)), 1e-12);
    const std::vector<AllReduceTime> measured = {{1, 0.004}, {1e15, 0.004}};
    EXPECT_NEAR(simulate_all_reduce(network, work, {}, measured).step,
                all_reduce_step(kF, one.b, std::vector<double>(one.c.size(), 0.004), sum(one.u)), 1e-12);
  }
  EXPECT_NEAR(simulate_all_reduce(even_network(1), even_work({1}, {1}, {9})).step, kF + 2, 1e-12);
}

TEST(Simulate, MeasuredAllReducesAreInterpolated) {
  const std::vector<AllReduceTime> measured = {{100, 1}, {200, 3}};
  const Network network = even_network(4);
  EXPECT_DOUBLE_EQ(all_reduce_seconds(network, 150, measured), 2);
  EXPECT_DOUBLE_EQ(all_reduce_seconds(network, 50, measured), 1);
  EXPECT_DOUBLE_EQ(all_reduce_seconds(network, 400, measured), 7);
  EXPECT_DOUBLE_EQ(all_reduce_seconds(network, 400, {{100, 1}, {200, 0.9}}), 1);  // they vary
  EXPECT_DOUBLE_EQ(all_reduce_seconds(network, 400, {{100, 1}}), 4);
}

// A world with the link as its only limit.
double link_bound(const Network& network, const std::string& schedule, int per_host, bool groups = true) {
  Work work = even_work({0, 0, 0, 0}, {1e-5, 1e-5, 1e-5, 1e-5}, {0.01, 0.01, 0.01, 0.01});
  work.groups = groups;
  work.compute[0].forward = {1e-5};
  const int n = static_cast<int>(network.host_of.size());
  return simulate(network, work, make_schedule(schedule, n, per_host), Mixing::ahead,
                  {.iterations = 240, .warm_up = 40})
      .step;
}

TEST(Simulate, TheWorkersOfAHostShareItsInterface) {
  // Two on a host: one round of one-peer-exponential's three stays inside; in the others both send
  // all of it.
  EXPECT_NEAR(link_bound(even_network(8, 2), "one-peer-exponential", 2), 2 * 0.04 * 2 / 3, 0.002);
  EXPECT_NEAR(link_bound(even_network(8, 1), "one-peer-exponential", 1), 0.04, 0.0005);
  EXPECT_LT(link_bound(even_network(8, 8), "one-peer-exponential", 8), 0.001);  // all inside
}

TEST(Simulate, LateWorkersAreNotHeldUpByThoseAhead) {
  // Pairs (0, 1), (2, 3) and (0, 2), (1, 3) by turns; links take 25 ms of a step, compute 24. When
  // 0 and 2 are late, 1 and 3 are ahead. Their blocks of the next round must wait until 0 and 2
  // have theirs. Otherwise they would delay the exchange between 0 and 2 (steps of 31 ms).
  Work work =
      even_work({0.005, 0.005, 0.005, 0.005}, {1e-6, 1e-6, 1e-6, 1e-6}, {0.00625, 0.00625, 0.00625, 0.00625});
  Compute& compute = work.compute[0];
  constexpr std::size_t kRecorded = 40;
  compute.data_wait.assign(kRecorded, 0);
  compute.forward.assign(kRecorded, 0.004);
  for (auto* lists : {&compute.backward, &compute.update}) {
    for (auto& list : *lists) list.assign(kRecorded, list[0]);
  }
  const auto step = [&] {
    return simulate(even_network(4), work, make_schedule("base-2", 4), Mixing::ahead,
                    {.iterations = 400, .warm_up = 20})
        .step;
  };
  EXPECT_NEAR(step(), 0.025, 1e-5);
  work.compute.resize(4, compute);
  for (const std::size_t late : {0, 2}) work.compute[late].forward[7] += 0.015;
  EXPECT_GT(step(), 0.025 + 0.015 / kRecorded);
  EXPECT_LT(step(), 0.028);
}

TEST(Simulate, EveryPeerCostsABlock) {
  EXPECT_NEAR(link_bound(even_network(8), "ring", 1), 2 * 0.04, 0.001);
  EXPECT_NEAR(link_bound(even_network(8), "static-exponential", 1), 3 * 0.04, 0.002);
}

TEST(Simulate, GroupsShareTheirWork) {
  // Reduce-scatter and all-gather: 2 (g - 1) / g; in pairs g - 1.
  EXPECT_NEAR(link_bound(even_network(8), "complete", 1), 2 * 7.0 / 8 * 0.04, 0.002);
  EXPECT_NEAR(link_bound(even_network(8), "complete", 1, false), 7 * 0.04, 0.005);
}

TEST(Simulate, AlternatingExpRingLoadsHalfOfTheInterfacesInARound) {
  // A node of four sends 4 models in one of its two rounds and nothing in the other. The slack of
  // one step evens it out.
  EXPECT_NEAR(link_bound(even_network(16, 4), "alternating-exp-ring", 4), 4 * 0.04 / 2, 0.01);
}

TEST(Simulate, ASlowLinkSlowsItsEnds) {
  Network network = even_network(2);
  network.links = {{0, 1, 0, kRate / 4}};
  // The other direction is fast, but both wait for both.
  EXPECT_NEAR(link_bound(network, "one-peer-ring", 1), 4 * 0.04, 0.002);
  network.hosts[1].receive = kRate / 4;
  network.links.clear();
  EXPECT_NEAR(link_bound(network, "one-peer-ring", 1), 4 * 0.04, 0.002);
}

TEST(Simulate, ASlowLinkSlowsGroupsAndAllReduceAcrossIt) {
  for (const int per_host : {1, 2}) {
    // A shard of every worker of host 1 goes to every worker of host 2, and then a mean: with one
    // worker on each of four hosts half of a model in all, with two on each of three hosts 4 / 6 of
    // one, twice.
    const int hosts = per_host == 1 ? 4 : 3, n = hosts * per_host;
    Network network = even_network(n, per_host);
    const double even = all_reduce_seconds(network, 0.01 * kRate);
    EXPECT_NEAR(even, 2 * (n - 1.0) / n * 0.01, 1e-12);
    network.links = {{1, 2, 0, kRate / 10}};
    const double crosses = 2.0 * per_host * per_host / n;
    EXPECT_NEAR(link_bound(network, "complete", per_host), crosses * 10 * 0.04, 0.02 * crosses);
    EXPECT_NEAR(all_reduce_seconds(network, 0.01 * kRate), 10 * even, 1e-12);

    const Forecast outcome = simulate(network, even_work({0, 0}, {0, 0}, {0.01, 0.01}),
                                      make_schedule("complete", n, per_host), Mixing::ahead);
    EXPECT_EQ(outcome.busiest.host, 1);
    EXPECT_EQ(outcome.busiest.to, 2);
    EXPECT_NEAR(outcome.busiest.seconds, crosses * 10 * 0.02, 1e-9);
  }
}

TEST(Simulate, ASlowReceiverIsTheBusiest) {
  Network network = even_network(4);
  network.hosts[2].receive = kRate / 4;
  const Forecast outcome =
      simulate(network, even_work({0.01}, {0.001}, {0.01}), make_schedule("ring", 4), Mixing::ahead);
  EXPECT_EQ(outcome.busiest.host, 2);
  EXPECT_EQ(outcome.busiest.to, -1);
  EXPECT_NEAR(outcome.busiest.seconds, 2 * 4 * 0.01, 1e-9);
}

TEST(Simulate, AStragglerTakesAllWithItInTheEnd) {
  Work work = even_work({0.01, 0.01}, {0.001, 0.001}, {0.001, 0.001});
  work.compute.resize(8, work.compute[0]);
  work.compute[3].forward = {3 * kF};
  const double slow = 3 * kF + 0.02 + 0.002;
  for (const Mixing mixing : {Mixing::ahead, Mixing::inside}) {
    const double step = simulate(even_network(8), work, make_schedule("base-2", 8), mixing,
                                 {.iterations = 300, .warm_up = 100})
                            .step;
    EXPECT_NEAR(step, slow + (mixing == Mixing::inside ? 0.001 : 0), 0.001);
  }
  EXPECT_GT(simulate_all_reduce(even_network(8), work).step, slow);
}

TEST(Simulate, SlackTakesWhatAllReducePaysForVaryingCompute) {
  // Each worker is late by half a step in one iteration of ten, at random.
  Work work = even_work({0.01, 0.01}, {0.001, 0.001}, {0.0005, 0.0005});
  Compute& compute = work.compute[0];
  compute.forward.assign(10, kF);
  compute.forward[4] += 0.016;
  compute.data_wait.assign(10, 0);
  for (auto* lists : {&compute.backward, &compute.update}) {
    for (auto& list : *lists) list.assign(10, list[0]);
  }
  const Horizon run{.iterations = 400, .warm_up = 50};
  const Forecast gossip = simulate(even_network(16), work, make_schedule("base-2", 16), Mixing::ahead, run);
  const Forecast reduced = simulate_all_reduce(even_network(16), work, run);
  // All-reduce waits for the slowest of 16: late in 1 - 0.9^16 of the steps.
  const double late = 0.016 * (1 - std::pow(0.9, 16));
  EXPECT_NEAR(reduced.step, 0.032 + late + 2 * 15.0 / 16 * 0.0005, 0.0015);
  EXPECT_NEAR(reduced.late, late - 0.0016, 0.0015);  // a tenth of it is a worker's own
  EXPECT_LT(gossip.step, reduced.step - 0.003);
  EXPECT_GT(gossip.step, gossip.own);
  EXPECT_NEAR(gossip.own, 0.032 + 0.0016, 0.0003);
  EXPECT_LE(gossip.low, gossip.step);
  EXPECT_GE(gossip.high, gossip.step);
}

TEST(Simulate, SameSeedSameResult) {
  Work work = even_work({0.01}, {0.001}, {0.02});
  work.compute[0].forward = {kF, 2 * kF};
  work.compute[0].data_wait = {0, 0};
  work.compute[0].backward = {{0.01, 0.01}};
  work.compute[0].update = {{0.001, 0.001}};
  const auto step = [&](std::uint64_t seed) {
    return simulate(even_network(5), work, make_schedule("base-2", 5), Mixing::ahead, {.seed = seed}).step;
  };
  EXPECT_EQ(step(1), step(1));
  EXPECT_NE(step(1), step(2));
}

TEST(Simulate, WorkersMayBeFarAhead) {
  // base-2 of five: worker 4 has a neighbour in only one round of five, so the others run ahead of
  // it.
  Work work = even_work({0.01}, {0.001}, {0.0001});
  work.compute.resize(5, work.compute[0]);
  work.compute[4].forward = {0.0001};
  const Forecast outcome = simulate(even_network(5), work, make_schedule("base-2", 5), Mixing::ahead,
                                    {.iterations = 200, .warm_up = 100});
  EXPECT_NEAR(outcome.step, kF + 0.011, 1e-4);
}

TEST(Simulate, OnOneHostWhoIsWaitedForIsKnown) {
  Network network = even_network(4, 4);
  const Schedule schedule = make_schedule("base-2", 4);
  Work work = even_work({0.01}, {0.001}, {0.01});
  work.compute.resize(4, work.compute[0]);
  work.compute[1].forward = {3 * kF};
  const Forecast slow_worker = simulate(network, work, schedule, Mixing::ahead);
  EXPECT_GT(slow_worker.waited, kF);
  EXPECT_NEAR(slow_worker.late, slow_worker.waited, 0.01 * slow_worker.waited);
  work.compute[1].forward = {kF};
  network.inside_rate = kRate / 10;  // 0.1 s for a block
  const Forecast slow_memory = simulate(network, work, schedule, Mixing::ahead);
  EXPECT_GT(slow_memory.waited, 0.05);
  EXPECT_EQ(slow_memory.late, 0);
}

TEST(Simulate, OneWorkerHasNobodyToWaitFor) {
  const Forecast outcome =
      simulate(even_network(1), even_work({0.01}, {0.001}, {5}), make_schedule("base-2", 1), Mixing::ahead);
  EXPECT_NEAR(outcome.step, kF + 0.011, 1e-12);
  EXPECT_EQ(outcome.busiest.host, -1);
}

TEST(Simulate, PartsMustFit) {
  const auto refused = [](const Network& network, const Work& work, int n, Horizon run = {}) {
    return refusal<UsageError>(
        [&] { simulate(network, work, make_schedule("base-2", n), Mixing::ahead, run); });
  };
  const Work work = even_work({1}, {1}, {1});
  EXPECT_EQ(refused(even_network(4), work, 5), "simulate: the schedule is for 5 workers, and there are 4");
  EXPECT_EQ(refused(even_network(4), work, 4, {.iterations = 10, .warm_up = 10}),
            "simulate: 10 iterations, 10 of them warm-up, leave none");
  Work less = work;
  less.compute[0].update.clear();
  EXPECT_EQ(
      refused(even_network(4), less, 4),
      "simulate: worker 0 must have the same number of recorded times for data, forward, and each of the 1 "
      "blocks' backward and update");
  Network far = even_network(4);
  far.host_of[2] = 9;
  EXPECT_EQ(refused(far, work, 4), "simulate: there is no host 9");
}

TEST(Simulate, SharesAreInProportionBetweenTheMeasuredOnes) {
  EXPECT_EQ(share_of({}, 7), 1);
  const std::vector<Shape> shapes{{1, 1}, {3, 0.5}, {7, 0.9}};
  for (const auto& [peers, share] :
       std::vector<std::pair<int, double>>{{1, 1}, {2, 0.75}, {3, 0.5}, {5, 0.7}, {7, 0.9}, {100, 0.9}})
    EXPECT_NEAR(share_of(shapes, peers), share, 1e-12) << peers;
  EXPECT_EQ(share_of({{2, 0.5}}, 1), 0.5);
}

TEST(Simulate, HasABound) {
  const Work work = even_work({0.001, 0.001}, {0, 0}, {0.05, 0.05});
  const char* const refused =
      "simulate: more than 500 events, because workers differ too much in speed, or there are too many "
      "workers, blocks, iterations or steps between exchanges";
  const Horizon few{.iterations = 100, .most_events = 500}, enough{.iterations = 100, .most_events = 50'000};
  for (const Mixing mixing : {Mixing::ahead, Mixing::inside}) {
    for (const char* topology : {"ring", "complete"}) {
      const auto said = [&](const Horizon& run) {
        return refusal<UsageError>(
            [&] { simulate(even_network(4), work, make_schedule(topology, 4), mixing, run); });
      };
      EXPECT_EQ(said(few), refused);
      EXPECT_EQ(said(enough), "accepted");
    }
  }
  EXPECT_EQ(refusal<UsageError>([&] { simulate_all_reduce(even_network(4), work, few); }), refused);
  EXPECT_EQ(refusal<UsageError>([&] { simulate_all_reduce(even_network(4), work, enough); }), "accepted");
}

// If links decide, an exchange that reaches a part of the interfaces takes longer in proportion:
// pairs, and groups' shards.
TEST(Simulate, ExchangesWithManyPeersReachTheirShare) {
  const Work work = even_work({0.001, 0.001}, {0, 0}, {0.05, 0.05});
  for (const auto& [schedule, n, peers, in_turn] : {std::tuple{"one-peer-exponential", 4, 1, false},
                                                    {"ring", 5, 2, false},
                                                    {"complete", 5, 4, false},
                                                    {"complete", 6, 5, true}}) {
    Network network = even_network(n);
    const auto step = [&, schedule = schedule, n = n] {
      return simulate(network, work, make_schedule(schedule, n), Mixing::ahead).step;
    };
    const double whole = step();
    network.shapes = {{peers, 0.5}};
    EXPECT_NEAR(step(), 2 * whole, 1e-6) << schedule;
    network.shapes = {{peers, 1}, {peers + 1, 0.1}};
    EXPECT_EQ(step(), whole) << schedule;
    if (peers == 1) continue;
    network.shapes = {{1, 1}, {peers, 0.5}};
    EXPECT_NEAR(step(), in_turn ? whole : 2 * whole, 1e-6) << schedule << n;
  }
}

// H steps of compute hide an exchange that is sent ahead; one inside the step shows once in H.
TEST(Simulate, LocalStepsAreWorkWithoutAnExchange) {
  for (const Case& one : cases()) {
    if (one.b.size() == 2) continue;  // as above
    const double own = kF + sum(one.b) + sum(one.u);
    for (const int every : {2, 5, 50}) {
      Work work = even_work(one.b, one.u, one.c);
      work.every = every;
      const auto forecast = [&](Mixing mixing) {
        return simulate(even_network(8), work, make_schedule("one-peer-exponential", 8), mixing,
                        {.iterations = 220, .warm_up = 20});
      };
      const double rest = (every - 1) * own;
      const double ahead = step_ahead(rest + kF, sum(one.b), one.u, one.c) / every,
                   inside = (rest + step_inside(kF, sum(one.b), one.u, one.c)) / every;
      EXPECT_NEAR(forecast(Mixing::ahead).step, ahead, 0.005 * ahead) << every << ", link " << sum(one.c);
      const Forecast outcome = forecast(Mixing::inside);
      EXPECT_NEAR(outcome.step, inside, 1e-9) << every << ", link " << sum(one.c);
      EXPECT_NEAR(outcome.own, own, 1e-9);
      EXPECT_NEAR(outcome.waited, inside - own, 1e-9);
      EXPECT_NEAR(outcome.high, inside, 1e-9);
    }
  }
}

TEST(Simulate, EachLocalStepDrawsARecordedIteration) {
  Work work = even_work({0.001}, {0.001}, {1e-6});
  Compute& compute = work.compute[0];
  compute.data_wait = {0, 0};
  compute.forward = {0.001, 0.101};
  compute.backward = compute.update = {{0.001, 0.001}};
  work.every = 40;
  const Forecast outcome =
      simulate(even_network(1), work, make_schedule("base-2", 1), Mixing::ahead, {.iterations = 120});
  EXPECT_NEAR(outcome.step, 0.053, 0.004);
  EXPECT_GT(outcome.low, 0.03);  // the mean of 40 steps varies less than one of them
  EXPECT_LT(outcome.high, 0.08);
}

// Three rounds for eight workers: the whole model in each, then two messages from all to all.
TEST(Simulate, AnExactMeanIsAPeriodOfBase2) {
  constexpr double kModel = 0.03, kLatency = 0.002;  // seconds on a link
  Work work = even_work({0.001}, {0.001}, {1e-6});
  work.model_bytes = kModel * kRate;
  const Network network = even_network(8, 1, kLatency);
  // A block is over when its acknowledgement has come, a latency after it.
  const double mean = 3 * (kModel + 2 * kLatency) + 2 * kLatency;
  EXPECT_NEAR(mean_seconds(network, work), mean, 1e-9);
  EXPECT_EQ(mean_seconds(even_network(1), work), 0);
  const double step = simulate(network, work, make_schedule("base-2", 8), Mixing::inside).step;
  for (const int every : {1, 4, 16, 1000}) {
    work.mean_every = every;
    const Forecast outcome = simulate(network, work, make_schedule("base-2", 8), Mixing::inside);
    EXPECT_NEAR(outcome.step, step + mean / every, 1e-9) << every;
    EXPECT_NEAR(outcome.means, mean / every, 1e-9) << every;
    EXPECT_NEAR(outcome.waited, outcome.step - outcome.own, 1e-9) << every;
  }
  work.every = 3;
  work.mean_every = 4;
  EXPECT_EQ(refusal<UsageError>([&] { simulate(network, work, make_schedule("base-2", 8), Mixing::inside); }),
            "simulate: a mean every 4 steps is no multiple of an exchange every 3");
}

}  // namespace
}  // namespace starling
