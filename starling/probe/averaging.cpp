#include "starling/probe/averaging.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <sstream>

#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <torch/optim/optimizer.h>

#include "starling/core/clock.h"
#include "starling/core/error.h"
#include "starling/core/text.h"
#include "starling/optim/blocks.h"
#include "starling/optim/gathering.h"
#include "starling/optim/pass.h"
#include "starling/topology/schedules.h"
#include "starling/transport/c10d/collectives.h"

namespace starling {

namespace {

constexpr int kMostWarmUp = 10;

// Sums over rounds: their number, their seconds, and the squares of these; and the final value of
// this worker's tensors.
struct Sums {
  double rounds = 0, seconds = 0, squares = 0;
  double value = 0;
  void add(double s) {
    rounds += 1;
    seconds += s;
    squares += s * s;
  }
};

// Calls round(t) `rounds` times. The first ones are not counted.
template <class Round>
Sums timed(int rounds, Round&& round) {
  const int warm_up = std::min(kMostWarmUp, rounds / 10);
  Sums sums;
  for (int t = 0; t < warm_up + rounds; ++t) {
    const Time begin = Clock::now();
    round();
    if (t >= warm_up) sums.add(seconds(Clock::now() - begin));
  }
  return sums;
}

std::vector<at::Tensor> tensors_of(const World& world, const AveragingOptions& options) {
  const auto size = static_cast<std::int64_t>(options.bytes / sizeof(float));
  std::vector<at::Tensor> tensors;
  for (int k = 0; k < options.tensors; ++k) tensors.push_back(at::full({size}, world.rank, at::kFloat));
  return tensors;
}

Sums by_schedule(const World& world, Gathering& gathering, const Schedule& schedule,
                 const AveragingOptions& options) {
  std::vector<Block> blocks;
  std::vector<std::size_t> sizes;
  for (const at::Tensor& tensor : tensors_of(world, options)) {
    Block& block =
        blocks.emplace_back(Block{.index = static_cast<int>(blocks.size()), .length = tensor.numel()});
    block.segments.push_back({.parameter = tensor, .length = tensor.numel()});
    sizes.push_back(static_cast<std::size_t>(tensor.numel()));
  }
  Exchange exchange(world.make_transport(world, "averaging-" + schedule.name), schedule, sizes,
                    {.patience = {.meet = world.timeouts.meet,
                                  .silent = world.timeouts.silent,
                                  .stalled = world.timeouts.stalled,
                                  .interrupted = world.interrupted},
                     .log = world.log});
  exchange.meet();
  gathering.wait();
  for (Block& block : blocks) send_again(exchange, block);
  Sums sums = timed(options.rounds, [&] {
    for (Block& block : blocks) {
      const auto arrived = finish(exchange, block);
      const bool finite = mix(block, arrived, exchange.outgoing(block.index));
      start(exchange, block, finite);
    }
  });
  for (Block& block : blocks) finish(exchange, block);
  gathering.wait();  // the others may still need this one
  const ExchangeStatistics statistics = exchange.statistics();
  if (statistics.aborted > 0)
    throw Error(fmt::format("averaging by {}: worker {}: {} of {} exchanges were aborted", schedule.name,
                            world.rank, statistics.aborted, statistics.aborted + statistics.committed));
  sums.value = blocks[0].segments[0].parameter.mean().item<double>();
  return sums;
}

Sums by_all_reduce(const World& world, Gathering& gathering, const AveragingOptions& options) {
  const std::vector<at::Tensor> tensors = tensors_of(world, options);
  const std::unique_ptr<Collectives> collectives = make_collectives(world, "averaging");
  gathering.wait();
  Sums sums = timed(options.rounds, [&] {
    std::vector<Collectives::Pending> pending;
    for (const at::Tensor& tensor : tensors) pending.push_back(collectives->all_reduce_sum(tensor));
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      pending[k].wait();
      tensors[k].div_(world.size);
    }
  });
  sums.value = tensors[0].mean().item<double>();
  return sums;
}

AveragingTime of_all(Gathering& gathering, const std::string& way, const Sums& mine) {
  Sums all;
  double least = mine.value, most = mine.value;
  const std::vector<std::string> texts = gathering.texts(
      fmt::format("{:.17g} {:.17g} {:.17g} {:.17g}", mine.rounds, mine.seconds, mine.squares, mine.value));
  for (std::size_t worker = 0; worker < texts.size(); ++worker) {
    Sums one;
    std::istringstream said(texts[worker]);
    said >> one.rounds >> one.seconds >> one.squares >> one.value;
    if (!said || one.rounds < 1)
      throw Error(fmt::format("averaging: worker {} says {}, which are no sums over rounds", worker,
                              short_of(texts[worker])));
    least = std::min(least, one.value);
    most = std::max(most, one.value);
    all.rounds += one.rounds;
    all.seconds += one.seconds;
    all.squares += one.squares;
  }
  const double mean = all.seconds / all.rounds;
  return {.way = way,
          .mean = mean,
          .deviation = std::sqrt(std::max(0.0, all.squares / all.rounds - mean * mean)),
          .spread = most - least};
}

}  // namespace

std::vector<AveragingTime> measure_averaging(const World& world, const AveragingOptions& options) {
  Gathering gathering(world, "averaging");
  std::vector<AveragingTime> times;
  for (const std::string& way : options.ways) {
    Schedule schedule;
    if (way != "all-reduce") {
      try {
        schedule = make_schedule(way, world.size, world.local_size);
      } catch (const UsageError& refused) {
        times.push_back({.way = way, .refused = refused.what()});
        continue;
      }
    }
    if (options.says) options.says(way);
    const Sums mine = way == "all-reduce" ? by_all_reduce(world, gathering, options)
                                          : by_schedule(world, gathering, schedule, options);
    times.push_back(of_all(gathering, way, mine));
  }
  return times;
}

}  // namespace starling
