// What Options ask for, and what is refused of them whatever the parameters are: before any process is
// started, too. What concerns schemes follows from their table (schemes/table.h).
#pragma once

#include <string>

#include "starling/optim/optimizer.h"
#include "starling/optim/schemes/scheme.h"
#include "starling/topology/graph.h"

namespace starling {

// Throws UsageError if there is no such scheme.
const SchemeInfo& scheme_of(const Options& options);
// Whether pairs of workers average beside training, so that there are no rounds.
bool averages_in_pairs(const Options& options);

// local_workers: on this host, as the launcher says.
int workers_per_node(const Options& options, int local_workers);

// The edges of each round; for some schemes none. Throws as make_schedule().
Schedule schedule_of(const Options& options, int workers, int local_workers);

// Throws UsageError, in one line with the reason, if a value is out of range or two make no sense together.
// `around`: with an optimizer that Starling did not write.
void check_options(const Options& options, int workers, int local_workers, bool around);

// Why all parameters must be float32; empty: they may be bfloat16 or float16.
std::string needs_float32(const Options& options, bool around);

// Why all parameters must be on the CPU; empty: they may be on CUDA devices.
std::string needs_cpu(const Options& options);

}  // namespace starling
