// A network that falls into two parts, whose workers all live: what each part does meanwhile, and
// how they come together again. In virtual time.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/optim/every_scheme.h"
#include "tests/optim/fragile_network.h"

namespace starling {
namespace {

using namespace std::chrono_literals;
using at::Tensor;
using testing::HasSubstr;
using testing::Not;

constexpr int kMany = 4;

// Workers whose network loses the edges between `part` and the others, but for the one to `bridge`.
class PartedWorkers {
 public:
  PartedWorkers(Partition partition, std::set<int> part, int bridge = kMany)
      : time(std::make_shared<VirtualTime>(kMany)),
        network_(kMany, time),
        part_(std::move(part)),
        bridge_(bridge),
        worlds_(World::threads(kMany)) {
    for (World& world : worlds_) {
      world.partition = partition;
      world.log = lines.log(Level::info);
      world.make_transport = network_.transports();
    }
  }
  // f(worker, world) on a thread for each.
  void run(const std::function<void(int, World&)>& f) {
    virtual_workers(*time, kMany, [&](int rank) { f(rank, worlds_[static_cast<std::size_t>(rank)]); });
  }
  // One worker calls it.
  void cut_at(Time when) {
    time->at(when, [this] { each_cut([this](int i, int j) { network_.sever(i, j); }); });
  }
  void mend_at(Time when) {
    time->at(when, [this] { each_cut([this](int i, int j) { network_.mend(i, j); }); });
  }
  void stalled(std::chrono::milliseconds stalled) {
    for (World& world : worlds_) world.timeouts.stalled = stalled;
  }

  const std::shared_ptr<VirtualTime> time;
  LogLines lines;

 private:
  void each_cut(const std::function<void(int, int)>& f) const {
    for (const int i : part_) {
      for (int j = 0; j < kMany; ++j) {
        if (!part_.contains(j) && j != bridge_) f(i, j);
      }
    }
  }

  FragileNetwork network_;
  const std::set<int> part_;
  const int bridge_;
  std::vector<World> worlds_;
};

struct Parts {
  Partition partition;
  std::set<int> part;
  bool part_pauses, rest_pauses;
  int bridge = kMany;  // one of the rest that both parts see
};

// All gradients but the first are 0, so workers only come together. Their mean shows that no
// exchange was mixed at one end alone.
TEST(Partition, EachPartDoesAsThePolicySaysAndBothComeTogetherAgain) {
  for (const char* scheme : {"cta", "a2cid2"}) {
    for (const auto& [partition, part, part_pauses, rest_pauses, bridge] :
         {Parts{Partition::go_on, {2, 3}, false, false}, Parts{Partition::pause, {2, 3}, true, false},
          Parts{Partition::pause, {0, 1}, false, true}, Parts{Partition::pause, {0}, true, false},
          Parts{Partition::pause, {3}, true, false, 2}}) {
      SCOPED_TRACE(fmt::format("{}, parted {}, {}", scheme, fmt::join(part, ", "),
                               partition == Partition::pause ? "pause" : "continue"));
      PartedWorkers workers(partition, part, bridge);
      const auto& time = workers.time;
      std::array<std::uint64_t, kMany> meanwhile{};  // steps
      std::array<double, kMany> before_mend{};
      workers.run([&](int rank, World& world) {
        const auto i = static_cast<std::size_t>(rank);
        const Tensor x = parameter({40});
        Optimizer optimizer({x}, SGD{.lr = 1}, {.topology = "ring", .scheme = scheme}, world);
        x.mutable_grad() = at::full({40}, static_cast<double>(rank * rank));
        optimizer.step();
        const Time cut = time->now() + 5ms, mend = cut + 25s;
        if (rank == 0) workers.cut_at(cut), workers.mend_at(mend);
        while (time->now() < mend + 15s) {
          time->sleep(20ms);
          const bool is_parted = time->now() > cut + 2 * world.timeouts.silent;
          x.mutable_grad().zero_();
          optimizer.step();
          if (!is_parted || time->now() >= mend) continue;
          ++meanwhile[i];
          before_mend[i] = x[0].item<double>();
        }
        optimizer.wait_for_all();
        {
          const Consensus average(optimizer);
          EXPECT_EQ(average.workers(), kMany);
          EXPECT_LT(average.distance(), 1e-3);
          EXPECT_NEAR(x[0].item<double>(), -(0 + 1 + 4 + 9) / 4.0, 1e-3);
        }
        nobody_leaves_yet(optimizer);
      });
      for (int i = 0; i < kMany; ++i) {
        const bool pauses = part.contains(i) ? part_pauses : rest_pauses;
        const std::uint64_t steps = meanwhile[static_cast<std::size_t>(i)];
        EXPECT_EQ(steps == 0, pauses) << i;
        EXPECT_TRUE(pauses || steps > 500) << i << " has made " << steps;
      }
      if (partition == Partition::go_on) {
        EXPECT_NEAR(before_mend[0], before_mend[1], 1e-3);
        EXPECT_NEAR(before_mend[2], before_mend[3], 1e-3);
        EXPECT_GT(std::abs(before_mend[0] - before_mend[2]), 1) << "the parts have trained apart";
      }
      const bool paused = part_pauses || rest_pauses;
      const std::string text = workers.lines.text();
      if (!paused) {
        EXPECT_THAT(text, Not(HasSubstr("pauses")));
        continue;
      }
      std::set<int> missed;
      for (int i = 0; i < kMany; ++i) {
        if (part.contains(i) != part_pauses && i != bridge) missed.insert(i);
      }
      EXPECT_THAT(text, HasSubstr(fmt::format(
                            "this worker sees too few of the others, and pauses: it misses worker{} {}\n",
                            missed.size() == 1 ? "" : "s", fmt::join(missed, ", "))));
      EXPECT_THAT(text, HasSubstr("this worker sees enough of the others again, and goes on"));
    }
  }
}

TEST(Partition, AWorkerThatStaysCutOffEnds) {
  PartedWorkers workers(Partition::pause, {3});
  workers.stalled(20s);
  workers.run([&](int rank, World& world) {
    const Tensor x = parameter({4});
    Optimizer optimizer({x}, SGD{}, {.topology = "ring", .scheme = "cta"}, world);
    optimizer.step();
    const Time begin = workers.time->now();
    if (rank == 0) workers.cut_at(begin + 5ms);
    const std::string end = refusal([&] {
      while (workers.time->now() < begin + 60s) {
        workers.time->sleep(10ms);
        optimizer.step();
      }
    });
    EXPECT_EQ(end, rank == 3 ? "this worker has paused for 20 s, and sees too few of the others: it misses "
                               "workers 0, 1, 2"
                             : "accepted");
  });
}

TEST(Partition, AllWorkersMustHaveOnePolicy) {
  flock(2, [](int i, World& world) {
    if (i == 1) world.partition = Partition::pause;
    EXPECT_EQ(refusal<UsageError>([&] { Optimizer({parameter({4})}, SGD{}, {.scheme = "cta"}, world); }),
              "the workers differ in STARLING_PARTITION: continue at worker 0, pause at worker 1; it must be "
              "the same on all");
  });
}

TEST(Partition, APauseIsNotForAllReduce) {
  std::vector<World> worlds = World::threads(2);
  worlds[0].partition = Partition::pause;
  EXPECT_EQ(
      refusal<UsageError>([&] { Optimizer({parameter({4})}, SGD{}, {.scheme = "all-reduce"}, worlds[0]); }),
      "STARLING_PARTITION=pause is not for scheme all-reduce: it ends when a worker does not answer");
}

}  // namespace
}  // namespace starling
