// Tests that run over the table of all schemes.
#pragma once

#include "starling/core/error.h"
#include "starling/optim/gathering.h"
#include "starling/optim/options.h"
#include "starling/optim/schemes/table.h"
#include "starling/transport/c10d/virtual_collectives.h"
#include "tests/optim/flock.h"
#include "tests/virtual_workers.h"

namespace starling {

// The scheme on a topology that it takes.
inline Options options_of(const SchemeInfo& info) {
  const bool directed = info.traits.edges == EdgeKind::directed;
  Options options{.topology = directed ? "n-peer-exponential-1" : "ring", .scheme = std::string(info.name)};
  for (const SchemeOption& option : info.options) {
    // Signs keep no mean: demo_test.cpp.
    if (option.name == "signs") options.scheme.options.emplace_back("signs", std::string("off"));
    // The first step is then as large as the gradient: tracking_adam.cpp.
    if (option.name == "floor") options.scheme.options.emplace_back("floor", 0.01);
  }
  try {
    check_options(options, 4, 4, false);
    return options;
  } catch (const UsageError&) {  // of the weights of this ring
    return {.topology = "star", .scheme = options.scheme};
  }
}

// Lets an outer step of the scheme's own end at the merged point.
inline void end_at_merged(Options& options, const SchemeInfo& info) {
  if (info.traits.outer_options > 0) options.outer_lr = 1;
  if (info.traits.outer_options > 1) options.outer_momentum = 0;
}

// The share of a momentum of the scheme's own that a step keeps.
inline bool is_momentum(const SchemeOption& option) {
  return option.name == "beta" || option.name == "beta1";
}

// f(worker, world, time) on n threads in virtual time. Every network card, and every collective
// operation, carries `rate` bytes a second.
inline void virtual_flock(int n, const std::function<void(int, World&, VirtualTime&)>& f,
                          double rate = std::numeric_limits<double>::infinity()) {
  const auto time = std::make_shared<VirtualTime>(n);
  std::vector<World> worlds = World::threads(n);
  const auto transports = virtual_transports(virtual_network(time, rate));
  const auto collectives = virtual_collectives(
      time, [rate](int, std::size_t bytes) { return of_seconds(static_cast<double>(bytes) / rate); });
  virtual_workers(*time, n, [&](int rank) {
    World& world = worlds[static_cast<std::size_t>(rank)];
    world.make_transport = transports;
    world.make_collectives = collectives;
    f(rank, world, *time);
  });
}

class EveryScheme : public testing::TestWithParam<const SchemeInfo*> {
 protected:
  static constexpr int kMany = 4;  // workers

  const SchemeInfo& info() const { return *GetParam(); }
  bool in_pairs() const { return info().traits.path == Path::pairs; }
  bool mixes() const {
    return info().traits.path != Path::gradients && info().traits.edges != EdgeKind::none;
  }
  bool may_skip() const { return !info().traits.sums_gradients; }
  // Its step of one parameter depends on all others, and its direction replaces .grad.
  bool couples_parameters() const { return info().name == "quasi-global-adam"; }
  bool leaves_gradients() const { return may_skip() && !couples_parameters(); }
  Options options() const { return options_of(info()); }
  Options uncoupled() const { return couples_parameters() ? linear() : options(); }
  // Without second moments of the scheme's own: its step is linear in the gradients.
  Options linear() const {
    Options all = options();
    if (couples_parameters()) all.scheme.options.emplace_back("beta1", 0.0);  // d has length 1
    for (const SchemeOption& option : info().options) {
      if (option.name == "beta2") all.scheme.options.emplace_back("beta2", 1.0);
      if (option.name == "floor" || option.name == "moment_eps")
        all.scheme.options.emplace_back(std::string(option.name), 1.0);
    }
    return all;
  }
  // And without its own momentum.
  Options without_momentum() const {
    Options all = linear();
    end_at_merged(all, info());
    for (const SchemeOption& option : info().options) {
      if (is_momentum(option) && !couples_parameters())
        all.scheme.options.emplace_back(std::string(option.name), 0.0);
    }
    return all;
  }
};

// Runs the suite, a class derived from EveryScheme, over the table.
#define STARLING_EVERY_SCHEME(suite)                                                              \
  INSTANTIATE_TEST_SUITE_P(Schemes, suite, testing::ValuesIn(schemes().begin(), schemes().end()), \
                           [](const auto& one) {                                                  \
                             std::string name(one.param->name);                                   \
                             std::ranges::replace(name, '-', '_');                                \
                             return name;                                                         \
                           })

}  // namespace starling
