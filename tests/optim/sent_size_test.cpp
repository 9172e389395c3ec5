// The bytes that optim/sent_size.h says are those that the edges count.
#include "starling/optim/sent_size.h"

#include <fmt/format.h>

#include "tests/eventually.h"
#include "tests/mixed.h"
#include "tests/optim/every_scheme.h"

namespace starling {
namespace {

using at::Tensor;

constexpr int kTurns = 4;  // one_in of the random-k cases

class SentSizeOf : public EveryScheme {
 protected:
  // The scheme with what changes its bytes, if it takes that.
  std::vector<Options> variants() const {
    std::vector<Options> all;
    const auto add = [&](const auto& change) {
      Options with = options();
      change(with);
      try {
        check_options(with, kMany, kMany, false);
        all.push_back(with);
      } catch (const UsageError&) {  // the scheme refuses it
      }
    };
    add([](Options&) {});
    for (const Wire wire : {Wire::bf16, Wire::int8, Wire::int4}) add([&](Options& o) { o.wire = wire; });
    add([](Options& o) { o.one_in = kTurns; });
    add([](Options& o) { o.one_in = kTurns, o.wire = Wire::int8; });
    add([](Options& o) { o.every = 2; });
    add([](Options& o) { o.one_in = kTurns, o.every = 3; });
    if (info().steps != nullptr)
      add([](Options& o) { o.scheme.options.emplace_back("staleness", std::int64_t{3}); });
    return all;
  }
};

// Each parameter alone would be cut differently by top-k, and each is larger than a run of a mask.
std::vector<Tensor> parameters() { return {parameter({64, 48}), parameter({10}), parameter({40, 30, 2})}; }

std::string text_of(const Options& o) {
  return fmt::format("{} over {}, {}, one in {}, every {}", o.scheme.name, o.topology, name_of(o.wire),
                     o.one_in, o.every);
}

TEST_P(SentSizeOf, IsWhatTheEdgesCount) {
  if (in_pairs() || info().traits.path == Path::gradients) GTEST_SKIP() << "has no rounds";
  for (const Options& options : variants()) {
    SCOPED_TRACE(text_of(options));
    const Schedule schedule = schedule_of(options, kMany, kMany);
    const auto period = static_cast<int>(schedule.rounds.size());
    const int rounds = 2 * kTurns * period;  // each edge then has sent each value twice
    const int between = steps_between_exchanges(options);
    std::vector<double> receivers(kMany);  // in all rounds
    for (const Graph& round : schedule.rounds) {
      for (const auto& row : round.neighbours) {
        for (const Neighbour& j : row) receivers[static_cast<std::size_t>(j.rank)] += rounds / period;
      }
    }
    flock(kMany, [&](int i, World& world) {
      const std::vector<Tensor> all = parameters();
      Optimizer optimizer(all, SGD{.lr = 0.01}, options, world);
      ASSERT_EQ(optimizer.block_sizes().size(), 1U);
      const bool ahead = info().path_of(SchemeSettings(options.scheme)) == Path::ahead;
      // One that sends ahead has begun its first round. Another may have agreed on something.
      const std::uint64_t before = ahead ? 0 : optimizer.statistics().payload_sent;
      train(all, optimizer, i, 0, between * (ahead ? rounds - 1 : rounds));
      const double one = sent_size(as_one_block(all), schedule, options).block;
      const auto wanted =
          static_cast<std::uint64_t>(std::llround(one * receivers[static_cast<std::size_t>(i)]));
      EXPECT_TRUE(eventually([&] { return optimizer.statistics().payload_sent - before >= wanted; }));
      EXPECT_EQ(optimizer.statistics().payload_sent - before, wanted);
      EXPECT_EQ(wanted > 0, mixes());
      nobody_leaves_yet(optimizer);
    });
  }
}

// The parameters are set apart by hand, and no gradient moves them.
TEST_P(SentSizeOf, WorkersAgreeAsTheTableSays) {
  const Agrees agrees = info().traits.agrees;
  if (agrees == Agrees::in_its_own_way) GTEST_SKIP() << "not by W alone";
  const Options with = options();
  const Schedule schedule = schedule_of(with, kMany, kMany);
  const auto period = static_cast<int>(schedule.rounds.size());
  const int steps = agrees == Agrees::in_a_period ? period : 3 * period;
  std::vector<double> x{1, -2, 4, 9};
  const double mean = std::accumulate(x.begin(), x.end(), 0.0) / kMany;
  const std::vector<double> start = x;
  for (int round = 0; round < steps; ++round) x = mixed(x, schedule.at(round));
  flock(kMany, [&](int i, World& world) {
    const auto at = static_cast<std::size_t>(i);
    const Tensor p = parameter({300});
    Optimizer optimizer({p}, SGD{.lr = 0.1}, with, world);
    p.detach().fill_(start[at]);
    optimizer.restart(0);
    for (int step = 0; step < steps; ++step) {
      p.mutable_grad() = at::zeros_like(p);
      optimizer.step();
    }
    EXPECT_TRUE(is_all(p, agrees == Agrees::in_a_period ? mean : x[at])) << i << ": " << p[0] << " " << x[at];
    nobody_leaves_yet(optimizer);
  });
}

STARLING_EVERY_SCHEME(SentSizeOf);

TEST(SentSize, OfTheModelsOwnFormats) {
  const Block block = typical_block();
  const auto share = [&](const Options& options) {
    const SentSize size = sent_size(block, schedule_of(options, 4, 4), options);
    return std::pair(size.block / (4.0 * static_cast<double>(block.length)),
                     size.mean / (4.0 * static_cast<double>(block.length)));
  };
  EXPECT_EQ(share({}), std::pair(1.0, 1.0));
  EXPECT_EQ(share({.wire = Wire::bf16}), std::pair(0.5, 1.0));  // a mean is fp32
  EXPECT_NEAR(share({.wire = Wire::int4}).first, 0.125, 1e-5);  // and a trailer
  EXPECT_EQ(share({.wire = Wire::bf16, .one_in = 4}), std::pair(0.125, 0.25));
  EXPECT_EQ(share({.scheme = "gradient-tracking"}), std::pair(2.0, 2.0));
  EXPECT_EQ(share({.topology = "ring", .scheme = "choco", .one_in = 16}).first, 2.0 / 16);
  EXPECT_NEAR(share({.scheme = "push-diging"}).first, 2, 1e-5);  // and a weight
}

TEST(StepsBetweenExchanges, AreLocalStepsAndStaleness) {
  EXPECT_EQ(steps_between_exchanges({}), 1);
  EXPECT_EQ(steps_between_exchanges({.every = 7}), 7);
  EXPECT_EQ(steps_between_exchanges({.scheme = "push-sum"}), 1);
  EXPECT_EQ(steps_between_exchanges({.scheme = {"push-sum", {{"staleness", 5}}}}), 5);
}

}  // namespace
}  // namespace starling
