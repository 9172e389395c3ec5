// Tests of a task's model on the test set, which every worker holds whole. Collective, except
// test().
#pragma once

#include "starling/optim/optimizer.h"
#include "starling/train/ema.h"
#include "starling/train/task.h"

namespace starling {

// Tests this worker's model as it stands, on the whole test set. Logs what the test left out.
Score test(Task& task, const Log& log);

struct AverageScore {
  Score score;
  double consensus_distance = 0;  // of the workers' models
};
// Tests the average model: with `ema`, the average of the workers' moving averages. The workers
// that are left share the test set out; every example counts once.
AverageScore test_average(Optimizer& optimizer, Task& task, const Ema* ema = nullptr);

// The worst score of the workers' own models, each on the whole test set. NaN is the worst of all.
double test_worst(Optimizer& optimizer, Task& task, const ScoreInfo& info);

}  // namespace starling
