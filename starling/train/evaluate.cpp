#include "starling/train/evaluate.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include "starling/core/failpoint.h"

namespace starling {

namespace {

Tally tally_of(Task& task, std::int64_t first, std::int64_t last, const Log& log) {
  const c10::AutoGradMode no_gradient(false);
  task.model().eval();
  Tally tally = task.test(first, last);
  task.model().train();
  log_warnings(task, log);
  return tally;
}

// The sum over all workers of their tallies, each of its own part of the test set.
Tally test_together(Optimizer& optimizer, Task& task, std::int64_t first, std::int64_t last) {
  Tally tally = tally_of(task, first, last, optimizer.world().log);
  std::vector<float> values{static_cast<float>(tally.examples), static_cast<float>(tally.loss)};
  for (const std::int64_t count : tally.counts) values.push_back(static_cast<float>(count));
  const int workers = std::max(optimizer.average(values), 1);
  const auto whole_number = [&](std::size_t i) { return std::llround(double{values[i]} * workers); };
  tally.examples = whole_number(0);
  tally.loss = double{values[1]} * workers;
  for (std::size_t i = 0; i < tally.counts.size(); ++i) tally.counts[i] = whole_number(2 + i);
  return tally;
}

// An integer for each number, in the same order. It is its own inverse.
std::int64_t sortable(std::int64_t bits) {
  return bits < 0 ? bits ^ std::numeric_limits<std::int64_t>::max() : bits;
}

}  // namespace

Score test(Task& task, const Log& log) { return task.score(tally_of(task, 0, task.test_examples(), log)); }

AverageScore test_average(Optimizer& optimizer, Task& task, const Ema* ema) {
  failpoint("test");
  const Operation operation(optimizer);
  const Consensus average(optimizer);  // its end puts this worker's own values back
  if (ema != nullptr) ema->show_average(optimizer);
  // This worker's place among those that are left.
  const std::vector<int> lost = optimizer.statistics().lost;
  const int rank = optimizer.world().rank;
  const auto place = rank - std::count_if(lost.begin(), lost.end(), [&](int other) { return other < rank; });
  const auto left = optimizer.world().size - static_cast<std::int64_t>(lost.size());
  const std::int64_t size = task.test_examples();
  Tally tally = test_together(optimizer, task, size * place / left, size * (place + 1) / left);
  // If a worker was lost meanwhile, its part is missing: now each tests the whole set.
  if (tally.examples != size) tally = test_together(optimizer, task, 0, size);
  return {task.score(tally), average.distance()};
}

double test_worst(Optimizer& optimizer, Task& task, const ScoreInfo& info) {
  const double sign = info.higher_is_better ? -1 : 1;
  const double own = sign * test(task, optimizer.world().log).value;
  // The sign of NaN says nothing: it is worse than all numbers.
  std::int64_t worst =
      std::isnan(own) ? std::numeric_limits<std::int64_t>::max() : sortable(std::bit_cast<std::int64_t>(own));
  optimizer.maximum({&worst, 1});
  return sign * std::bit_cast<double>(sortable(worst));
}

}  // namespace starling
