// CECA-2P in the optimizer, beside the paper's two vectors x and h in plain loops in double.
// tests/topology/ceca_test.cpp tests the rounds.
#include "starling/topology/ceca.h"
#include "tests/optim/every_scheme.h"
#include "tests/optim/plain.h"

namespace starling {
namespace {

using namespace std::chrono_literals;
using at::Tensor;

constexpr int kTwoVectorSteps = 11;
constexpr std::array<std::int64_t, 2> kTwoVectorSizes{301, 70'001};  // of two parameters, in several blocks

double pull_of(int i, int t) { return std::sin(0.7 * (i + 1) + 0.9 * t); }

// Returns each worker's parameters after these steps. All values of a worker are equal.
std::vector<double> plain_ceca(int n, const AccumAdamW* rule, double lr) {
  const auto rounds = ceca_2p_rounds(n);
  const auto workers = static_cast<std::size_t>(n);
  std::vector<double> x(workers, 0.5), h = x;
  std::vector<Plain> state(workers);
  for (int t = 1; t <= kTwoVectorSteps; ++t) {
    const CecaRound& round = rounds[static_cast<std::size_t>(t - 1) % rounds.size()];
    const std::vector<double> x_old = x, h_old = h;
    const double e = round.e;
    for (int i = 0; i < n; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const auto from = static_cast<std::size_t>((i + n - round.distance()) % n);
      const double y = round.sends_x ? x_old[from] : h_old[from];
      const double g = pull_of(i, t), step = lr * (rule != nullptr ? state[at].direction(g, *rule) : g);
      x[at] = (round.sends_x ? (x_old[at] + y) / 2 : ((e + 1) * x_old[at] + e * y) / (2 * e + 1)) - step;
      h[at] = (round.sends_x ? (e * h_old[at] + (e + 1) * y) / (2 * e + 1) : (h_old[at] + y) / 2) - step;
    }
  }
  return rounds[static_cast<std::size_t>(kTwoVectorSteps) % rounds.size()].sends_x ? x : h;
}

TEST(Ceca2PScheme, IsThePapersTwoVectorsForAnyNumberOfWorkers) {
  for (const int n : {1, 2, 5, 6}) {
    for (const bool adam : {false, true}) {
      if (adam && n != 5) continue;
      SCOPED_TRACE(std::to_string(n) + (adam ? " adam" : " sgd"));
      const AccumAdamW rule{.lr = 0.1, .eps = 0.5, .weight_decay = 0, .window = 3};
      const std::vector<double> should = plain_ceca(n, adam ? &rule : nullptr, 0.1);
      flock(n, [&](int i, World& world) {
        const Tensor p = parameter({kTwoVectorSizes[0]}, 0.5), q = parameter({kTwoVectorSizes[1]}, 0.5);
        Optimizer optimizer({p, q}, adam ? Rule(rule) : Rule(SGD{.lr = 0.1}), {.scheme = "ceca-2p"}, world);
        for (int t = 1; t <= kTwoVectorSteps; ++t) {
          p.mutable_grad() = at::full({kTwoVectorSizes[0]}, pull_of(i, t));
          q.mutable_grad() = at::full({kTwoVectorSizes[1]}, pull_of(i, t));
          optimizer.step();
        }
        EXPECT_TRUE(is_all(at::cat({p.detach(), q.detach()}), should[static_cast<std::size_t>(i)]))
            << p[0] << " " << should[static_cast<std::size_t>(i)];
        expect_undisturbed(optimizer);
      });
    }
  }
}

// In fp32 the average is exact after ceil(log2 n) steps. Every wire keeps the sum and brings the
// workers together.
TEST(Ceca2PScheme, EveryWireKeepsTheSumAndBringsWorkersTogether) {
  struct Case {
    Wire wire;
    double scale;
    int steps;
    double distance;  // at the end
  };
  for (const int n : {3, 5}) {
    const int exact = n == 3 ? 2 : 3;
    for (const Case& the :
         {Case{Wire::fp32, 1, exact, 1e-6}, {Wire::bf16, 1, 40, 4e-2}, {Wire::int8, 1e-4, 40, 1e-6}}) {
      SCOPED_TRACE(std::string(name_of(the.wire)) + " " + std::to_string(n));
      flock(n, [&](int i, World& world) {
        const Tensor p = parameter({999});
        Optimizer optimizer({p}, SGD{.lr = 1}, {.scheme = "ceca-2p", .wire = the.wire}, world);
        const Tensor mine = at::linspace(-1, 1, 999) * ((i + 1) * the.scale);
        p.detach().copy_(mine);  // both vectors begin here in the first round
        optimizer.restart(0);
        for (int t = 0; t < the.steps; ++t) optimizer.step();
        EXPECT_LT(optimizer.consensus_distance(), the.distance);
        const Consensus average(optimizer);
        EXPECT_TRUE(at::allclose(p.detach(), at::linspace(-1, 1, 999) * (the.scale * (n + 1) / 2), 1e-5,
                                 1e-5 * the.scale))
            << p[0];
      });
    }
  }
}

TEST(Ceca2PScheme, AGroupThatIsAddedTakesPart) {
  flock(3, [](int i, World& world) {
    const Tensor p = parameter({1000}), q = parameter({9});
    Optimizer optimizer({p}, SGD{.lr = 1}, {.scheme = "ceca-2p"}, world);
    p.mutable_grad() = at::full({1000}, static_cast<double>(i));
    optimizer.step();  // the second vector goes next
    p.mutable_grad() = Tensor();
    optimizer.add_param_group(torch::optim::OptimizerParamGroup({q}));
    q.mutable_grad() = at::full({9}, static_cast<double>(2 * i));
    optimizer.step();
    q.mutable_grad() = Tensor();
    for (int t = 0; t < 3; ++t) optimizer.step();
    EXPECT_TRUE(is_all(p, -1)) << p[0];
    EXPECT_TRUE(is_all(q, -2)) << q;
    nobody_leaves_yet(optimizer);
  });
}

// A worker sleeps, and the others go on without it for some rounds. Every lost exchange is counted.
// They move the mean by less than the distance between workers. One cycle later all agree again.
TEST(Ceca2PScheme, LostExchangesAreCountedAndMoveTheMeanALittle) {
  constexpr int n = 5;
  std::vector<double> begin(n), end(n);
  std::vector<std::uint64_t> lost(n);
  const auto work = [&](int rank, World& world, VirtualTime& time) {
    const Tensor x = parameter({10});
    Optimizer optimizer({x}, SGD{.lr = 1}, {.scheme = "ceca-2p", .max_wait = 20ms}, world);
    const auto go = [&](int steps) {
      for (int t = 0; t < steps; ++t) {
        time.sleep(10ms);
        optimizer.step();
        x.mutable_grad() = Tensor();
      }
    };
    go(3);
    x.mutable_grad() = at::full({10}, static_cast<double>(rank * rank));
    go(1);  // they are apart, in the middle of a cycle
    begin[static_cast<std::size_t>(rank)] = x[0].item<double>();
    if (rank == 2) time.sleep(100ms);
    go(30);
    EXPECT_LT(optimizer.consensus_distance(), 1e-5);
    end[static_cast<std::size_t>(rank)] = x[0].item<double>();
    lost[static_cast<std::size_t>(rank)] = optimizer.statistics().directed_aborted;
    nobody_leaves_yet(optimizer);
  };
  virtual_flock(n, work, 1e9);
  const auto [least, most] = std::minmax_element(begin.begin(), begin.end());
  const double before = std::accumulate(begin.begin(), begin.end(), 0.0) / n;
  EXPECT_NEAR(before, -6, 1e-5);  // 0, 1, 4, 9, 16
  EXPECT_GT(std::accumulate(lost.begin(), lost.end(), std::uint64_t{0}), 0U);
  EXPECT_GT(std::abs(end[0] - before), 1e-4);
  EXPECT_LT(std::abs(end[0] - before), *most - *least);
}

}  // namespace
}  // namespace starling
