// The meaning of Options, and the checks that do not depend on the parameters. They also run before
// any process is started. The schemes' table (schemes/table.h) says what depends on the scheme.
#pragma once

#include <cstdint>
#include <string>

#include "starling/core/range.h"
#include "starling/kernels/mask.h"
#include "starling/optim/course.h"
#include "starling/optim/optimizer.h"
#include "starling/optim/schemes/scheme.h"
#include "starling/optim/terms.h"
#include "starling/topology/graph.h"

namespace starling {

// The allowed values of Options, and of a recipe's keys of these names.
namespace ranges {
inline constexpr Range one_in = between(1, Mask::kMost), every = between(1, 1 << 20),
                       mean_every = between(0, 1 << 30), outer_lr = above(0),
                       outer_momentum = from_below(0, 1), outer_warmup = between(0, 1 << 30),
                       jump_guard = between(0, 1e6),
                       max_wait = {.least = 0, .most = 1e6, .least_open = true};  // seconds
}  // namespace ranges

// Throws UsageError if there is no such scheme.
const SchemeInfo& scheme_of(const Options& options);
// Steps from one mean of all workers to the next; without means, from one exchange to the next.
std::uint64_t period_of(const Options& options);
// The outer optimizer's learning rate and momentum over the steps of the run. They throw
// UsageError.
Course outer_lr_of(const Options& options);
Course outer_momentum_of(const Options& options);
// Whether pairs of workers average beside training, so that there are no rounds.
bool averages_in_pairs(const Options& options);

// local_workers: workers on this host, according to the launcher.
int workers_per_node(const Options& options, int local_workers);

// The edges of each round; some schemes have none. Throws as make_schedule().
Schedule schedule_of(const Options& options, int workers, int local_workers);

// Throws UsageError, with the reason in one line, if a value is out of range or two values
// contradict each other. `around`: with an optimizer that Starling did not write.
void check_options(const Options& options, int workers, int local_workers, bool around);

// The options that must be equal on all workers.
Terms terms_of(const Options& options);

// The reason why all parameters must be float32. Empty: they may be bfloat16 or float16.
std::string needs_float32(const Options& options, bool around);

// "WHAT: why" if restarted workers cannot join (World::rejoin). Empty: they can.
std::string not_for_rejoin(const Options& options);

}  // namespace starling
