// What Options ask for, and what is refused of them whatever the parameters are: before any process is started, too.
#pragma once

#include <string>
#include <vector>

#include "starling/gossip/a2cid2.h"
#include "starling/gossip/rates.h"
#include "starling/optim/optimizer.h"
#include "starling/topology/graph.h"

namespace starling {

// Options::scheme is one of these.
const std::vector<std::string>& known_schemes();

// Whether pairs of workers average beside training (gossip/), so that there are no rounds.
bool is_asynchronous(const Options& options);

// Whether it goes along directed edges: one worker gives what another takes.
bool is_directed(const Options& options);

// Of these, whether it is a form of push-sum: each block of a worker has a weight.
bool is_push_sum(const Options& options);

// Who averages with whom and how often, and with which momentum, for asynchronous schemes. Throws UsageError where the schedule's
// graph is not for the scheme.
PairRates rates_of(const Options& options, const Schedule& schedule);
A2cid2 momentum_of(const Options& options, const PairRates& rates);

// local_workers: on this host, as the launcher says.
int workers_per_node(const Options& options, int local_workers);

// Who mixes with whom; for all-reduce nobody. Throws as make_schedule().
Schedule schedule_of(const Options& options, int workers, int local_workers);

// Throws UsageError, in one line with the reason, where a value is out of range or two make no sense together. `around`: with an
// optimizer that Starling did not write.
void check_options(const Options& options, int workers, int local_workers, bool around);

// Why all parameters must be float32; empty: they may be bfloat16 or float16.
std::string needs_float32(const Options& options, bool around);

// Why all parameters must be on the CPU; empty: they may be on CUDA devices.
std::string needs_cpu(const Options& options);

}  // namespace starling
