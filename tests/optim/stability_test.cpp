// Every scheme with its own constants stays stable: over topologies, wires and numbers of workers,
// on networks that are fast enough, ten times too slow, or where workers stand still for a while or
// make their gradients in bursts.
//
//   no gradients   the distance is never above three times that of the start, in the end not above
//   noise          workers that mix stay nearer to each other than workers that do not: after T
//                  steps of N(0, 1) these are lr sqrt(T) from their mean
//
// Asynchronous schemes over a slow network are asked for ten times the averagings that it carries.
// Schemes with rounds wait for a slow network. The others go on without a worker that stands still:
// these rounds are lost, and it jumps to theirs.
#include <cstdlib>
#include <random>
#include <sstream>

#include "starling/exchange/weight.h"
#include "tests/optim/every_scheme.h"

namespace starling {
namespace {

using namespace std::chrono_literals;
using at::Tensor;

constexpr std::int64_t kHeight = 8, kWidth = 16, kValues = kHeight * kWidth;  // a matrix
constexpr double kLr = 0.1;
constexpr Duration kGradient = 10ms;
constexpr int kStall = 40;  // gradients

enum class Net { fast, slow, stalls, bursts };
constexpr std::array<const char*, 4> kNets{"fast", "slow", "stalls", "bursts"};

std::string name_of(Net net) { return kNets[static_cast<std::size_t>(net)]; }

struct Distances {
  double start = 0, end = 0, most = 0;
};

// Distance of the parameters to their mean.
double distance(const std::vector<Tensor>& x) {
  Tensor mean = x.front().detach().clone();
  for (std::size_t i = 1; i < x.size(); ++i) mean += x[i].detach();
  mean /= static_cast<double>(x.size());
  double squares = 0;
  for (const Tensor& one : x) squares += (one.detach() - mean).square().sum().item<double>();
  return std::sqrt(squares / static_cast<double>(x.size() * kValues));
}

// The first step brings the workers apart; `noise` also all later ones.
Distances run(const Options& options, int n, int steps, bool noise, Net net) {
  // A block of fp32 takes ten gradients.
  const double rate = net == Net::slow ? kValues * sizeof(float) / seconds(10 * kGradient) : 1e9;
  std::vector<Tensor> x(static_cast<std::size_t>(n));
  for (Tensor& one : x) one = parameter({kHeight, kWidth});
  Distances all;
  const auto work = [&](int rank, World& world, VirtualTime& time) {
    world.log = [](Level, const std::string&) {};
    const Tensor& mine = x[static_cast<std::size_t>(rank)];
    Optimizer optimizer({mine}, SGD{.lr = kLr}, options, world);
    std::mt19937_64 random(static_cast<std::uint64_t>(rank) + 1);
    std::normal_distribution<float> normal;
    for (int t = 0; t < steps; ++t) {
      // Each worker once, so that they end together; the last one some time before the end.
      const bool stands = net == Net::stalls && t % 50 == 10 && rank == t / 50 && t + 2 * kStall < steps;
      // Ten gradients in the time of two, then as long a pause; each worker at another time.
      const bool rests = net == Net::bursts && (t + 3 * rank) % 10 == 0;
      time.sleep(stands               ? kStall * kGradient
                 : rests              ? kGradient / 5 + 8 * kGradient
                 : net == Net::bursts ? kGradient / 5
                                      : kGradient);
      const Tensor g = at::empty({kHeight, kWidth});
      for (std::int64_t k = 0; k < kValues; ++k)
        g.mutable_data_ptr<float>()[k] = noise || t == 0 ? normal(random) : 0;
      mine.mutable_grad() = g;
      optimizer.step();
      if (rank != 0 || t == 0) continue;
      all.end = distance(x);  // one worker runs at a time
      all.most = std::max(all.most, all.end);
      if (t == 1) all.start = all.end;
    }
    optimizer.wait_for_all();
    std::int64_t nothing = 0;
    optimizer.maximum({&nothing, 1});
  };
  virtual_flock(n, work, rate);
  return all;
}

class Stability : public EveryScheme {
 protected:
  static std::vector<int> numbers() {
    const char* const given = std::getenv("STARLING_STABILITY_WORKERS");
    std::istringstream text(given == nullptr ? "4" : given);
    std::vector<int> all;
    for (int n; text >> n;) all.push_back(n);
    return all;
  }
  // The long run: more workers, topologies and steps.
  static bool whole() { return std::getenv("STARLING_STABILITY_WORKERS") != nullptr; }
  static constexpr int kFew = 6;  // with more workers there are fewer cases
  static std::vector<std::string> topologies(const SchemeInfo& info, int n) {
    switch (info.traits.edges) {
      case EdgeKind::symmetric:
        if (!whole() || n > kFew) return {"ring", "base-2"};
        return {"ring", "complete", "base-2", "star", "one-peer-exponential", "torus"};
      case EdgeKind::lasting:
        if (!whole() || n > kFew) return {"ring", "star"};
        return {"ring", "complete", "star", "torus"};
      case EdgeKind::directed:
        return {"n-peer-exponential-1", "one-peer-ring"};
      default:
        return {"base-2"};  // not used
    }
  }
  bool accepts(const Options& options, int n) const {
    try {
      check_options(options, n, 1, false);
      return true;
    } catch (const UsageError&) {
      return false;
    }
  }
  // Its second moments begin at those of the noise.
  SchemeChoice scheme() const {
    SchemeChoice choice{std::string(info().name)};
    for (const SchemeOption& option : info().options) {
      if (option.name == "floor") choice.options.emplace_back("floor", 1.0);
    }
    return choice;
  }
  // The wires that the scheme takes over the topology. In the short run, with many workers, and but
  // for the first topology: the widest and the narrowest of them.
  std::vector<Wire> wires(const std::string& topology, int n) const {
    std::vector<Wire> all;
    for (const Wire wire : {Wire::fp32, Wire::bf16, Wire::fp16, Wire::int8, Wire::int4}) {
      if (accepts({.topology = topology, .scheme = std::string(info().name), .wire = wire}, n))
        all.push_back(wire);
    }
    const bool is_first = topology == topologies(info(), n).front();
    if ((!whole() || n > kFew || !is_first) && all.size() > 2) all.erase(all.begin() + 1, all.end() - 1);
    return all;
  }
  // Schemes with rounds wait for a slow network, and for a worker that is late.
  bool has(Net net, const Options& options, int n) const {
    if (in_pairs() || net == Net::fast) return true;
    if (net == Net::slow || net == Net::bursts || !mixes() || n > kFew) return false;
    return options.wire == Wire::fp32 || (whole() && options.wire == Wire::int8);
  }
  void check(Options options, int n, Net net) const;
};

void Stability::check(Options options, int n, Net net) const {
  SCOPED_TRACE(testing::Message() << n << " workers, " << options.topology << ", " << name_of(options.wire)
                                  << ", one in " << options.one_in << ", network " << name_of(net));
  const auto period = static_cast<int>(schedule_of(options, n, 1).rounds.size());
  const int longest = n > kFew ? 200 : whole() ? 1600 : 300;
  const int steps = std::min(std::max(200, 100 * period * options.one_in), longest);
  const bool loses = net == Net::stalls && !in_pairs();
  if (loses) options.max_wait = std::chrono::milliseconds(20);
  // A push-sum's z is x / w, and a worker pushes while w is at least kLeastWeight. A tracked
  // gradient is the sum of several.
  const double most_share = in_pairs() && info().traits.edges == EdgeKind::directed ? 2 / kLeastWeight : 1;
  // A momentum of the scheme's own carries the first step on. A correction does so while there is
  // no exchange.
  const bool momentum = std::ranges::any_of(info().options, is_momentum) || info().name == "gasloc" ||
                        info().name == "streaming-diloco";  // outer_momentum
  const double carried = momentum ? 1 / (1 - 0.9) : 1, apart = loses && info().traits.exact ? kStall : 1;
  // Momentum, or a correction, moves workers that the first exchange has brought together.
  // With moments of length 1 all move on, also while one of them stands still.
  const double moved = couples_parameters() && loses ? kStall : 1;
  const double least = momentum || info().traits.exact ? kLr * moved : 0;
  const Distances still = run(options, n, steps, false, net);
  const double start = std::max(least, still.start);
  EXPECT_LE(still.most, 3 * carried * apart * start + 1e-6);
  EXPECT_LE(still.end, 1.05 * start + 1e-6);  // narrow wires round
  const Distances noisy = run(options, n, steps, true, net);
  // Without mixing a worker walks at random. Many workers are far from each other in the graph, so
  // momentum counts too. A correction has the noise of several steps.
  const double walk = kLr * std::sqrt(steps), corrected = info().traits.exact ? 2.5 : 1;
  const double bound = 1.2 * most_share * corrected * (n > kFew ? carried : 1) * walk;
  EXPECT_LT(noisy.end, bound);
  // While one stands still, the momentum of the others counts, and what was pushed to it is away.
  const double away = !loses ? 1 : std::max(carried, info().traits.edges == EdgeKind::directed ? 2.0 : 1.0);
  EXPECT_LT(noisy.most, away * bound);
}

TEST_P(Stability, MixingNeverDrivesWorkersApart) {
  int cases = 0;
  for (const int n : numbers()) {
    for (const std::string& topology : topologies(info(), n)) {
      for (const Wire wire : wires(topology, n)) {
        for (const int one_in : {1, 16}) {
          const Options options{.topology = topology, .scheme = scheme(), .wire = wire, .one_in = one_in};
          if (one_in != 1 && (wire != Wire::fp32 || !accepts(options, n))) continue;
          for (const Net net : {Net::fast, Net::slow, Net::stalls, Net::bursts}) {
            if (!has(net, options, n)) continue;
            check(options, n, net);
            ++cases;
          }
        }
      }
    }
  }
  EXPECT_GT(cases, 0);
}

STARLING_EVERY_SCHEME(Stability);

// Noise reaches the threshold in about every fourth step.
TEST(StabilityOfSquarm, SilentWorkersAreNotDrivenApart) {
  for (const char* const topology : {"ring", "complete", "star"}) {
    for (const int one_in : {1, 16}) {
      SCOPED_TRACE(testing::Message() << topology << ", one in " << one_in);
      const Options options{
          .topology = topology, .scheme = {"choco", {{"trigger", 4.0 * kValues}}}, .one_in = one_in};
      const Distances noisy = run(options, 6, 300, true, Net::fast);
      EXPECT_LT(noisy.end, 0.9 * kLr * std::sqrt(300));
      EXPECT_LT(noisy.most, kLr * std::sqrt(300));
    }
  }
}

// By the paper's constants alpha~ is 7.3 on a ring of 64. At most 1 suits int4.
TEST(StabilityOfA2cid2, Int4DrivesNoManyWorkersApart) {
  for (const Net net : {Net::fast, Net::slow, Net::stalls}) {
    SCOPED_TRACE("network " + name_of(net));
    const auto noisy = [net](const char* scheme) {
      return run({.topology = "ring", .scheme = scheme, .wire = Wire::int4}, 64, 300, true, net);
    };
    const Distances with = noisy("a2cid2"), without = noisy("ad-psgd");
    EXPECT_LT(with.end, 2 * without.end);
    // Rounding may jump for a moment. It would grow to thousands.
    EXPECT_LT(with.most, 10 * kLr * std::sqrt(300));
  }
}

// Worker i descends to an optimum of its own, with noise. The network carries `share` of the
// averagings that are asked for. Means over the second half of the run.
struct Descent {
  double loss = 0;      // 1/n Sum_i 1/2 mean (x_i - the common optimum)^2
  double distance = 0;  // of the workers from their mean
};

Descent descend(const std::string& scheme, int n, double share) {
  constexpr int kSteps = 400;
  const double rate = share * kValues * sizeof(float) / seconds(kGradient);
  std::vector<Tensor> x(static_cast<std::size_t>(n));
  for (Tensor& one : x) one = parameter({kHeight, kWidth});
  Descent all;
  const auto work = [&](int rank, World& world, VirtualTime& time) {
    world.log = [](Level, const std::string&) {};
    const Tensor& mine = x[static_cast<std::size_t>(rank)];
    Optimizer optimizer({mine}, SGD{.lr = kLr}, {.topology = "ring", .scheme = scheme}, world);
    std::mt19937_64 random(static_cast<std::uint64_t>(rank) + 1);
    std::normal_distribution<float> normal;
    const double optimum = 2 * std::cos(2 * 3.14159265 * rank / n);  // their mean is 0
    for (int t = 0; t < kSteps; ++t) {
      time.sleep(kGradient);
      Tensor g = mine.detach() - optimum;
      for (std::int64_t k = 0; k < kValues; ++k) g.mutable_data_ptr<float>()[k] += normal(random);
      mine.mutable_grad() = g;
      optimizer.step();
      if (rank != 0 || t < kSteps / 2) continue;
      double squares = 0;
      for (const Tensor& one : x) squares += one.detach().square().mean().item<double>();
      all.loss += squares / (2 * n) / (kSteps / 2);
      all.distance += distance(x) / (kSteps / 2);
    }
    optimizer.wait_for_all();
  };
  virtual_flock(n, work, rate);
  return all;
}

// Its momentum must not harm where the network carries fewer averagings than asked for.
TEST(StabilityOfA2cid2, IsNoWorseThanAdPsgdOverASlowNetwork) {
  const bool all = std::getenv("STARLING_STABILITY_WORKERS") != nullptr;
  for (const int n : all ? std::vector{16, 24, 32, 64} : std::vector{16}) {
    for (const double share : {0.1, 0.3, 0.6, 1.0}) {
      SCOPED_TRACE(testing::Message() << "ring of " << n << ", " << share << " of the rate");
      const Descent with = descend("a2cid2", n, share), without = descend("ad-psgd", n, share);
      EXPECT_LT(with.loss, 1.1 * without.loss);
      EXPECT_LT(with.distance, (share < 1 ? 2 : 1) * without.distance);
    }
  }
}

}  // namespace
}  // namespace starling
