// A chooser: which scheme, topology and wire to take in a situation, by the schemes' table
// (optim/schemes/table.h) and the planner's runtime model (plan/simulate.h).
//
// Each scheme takes the first of these that hides the link, or else the fastest of them:
//
//   fp32, bf16, int8, int4   all values in each step; top-k schemes: one in 4, 16 or 64
//   every 2, 4, .. 512       steps between two exchanges, in the narrowest wire of at least 8 bits
//
// If the bytes of a scheme depend on the shapes of the parameters, these are square matrices
// (typical_block()).
//
// A scheme without neighbours takes the mean of all workers every 2, 4, .. 512 steps. The
// topology is the planner's choice: the first within kAsGood of the fastest step. In pairs,
// a network that carries half of the averagings counts as a step of twice the time.
//
// The order of preference:
//
//   1. all values in each step, or what this repository has measured so
//   2. with strong skew: exact schemes, then those that bear it, both only if their step takes at
//      most kPatience times the fastest one
//   3. the shorter step, in quarters of the fastest
//   4. with some skew: exact schemes, then those that bear it
//   5. with failures: schemes that lose nothing lasting when a worker dies
//   6. all values in each step
//   7. schemes that this repository has measured so
//   8. directed edges only if they are needed
//   9. fewer vectors beside the parameters, then the order of the table
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "starling/optim/optimizer_options.h"
#include "starling/optim/schemes/scheme.h"

namespace starling {

enum class Skew { none, some, strong };

struct Situation {
  int workers = 8;
  int workers_per_node = 1;  // they share the node's link; links inside a node cost nothing
  // Time to send the parameters once in fp32 over a node's link, over the compute of a step.
  double link_over_compute = 0.1;
  double straggler = 1;  // worker 0 takes so many times as long
  Skew skew = Skew::none;
  bool failures = false;           // workers may die, and the others must go on
  bool directed = false;           // links carry data in one direction
  bool gpu = false;                // the parameters are on CUDA devices
  std::optional<double> memory{};  // bytes per parameter that mixing may take
  std::string rule{};              // in a recipe's words; "other": not Starling's; empty: any
  std::string topology{};          // that the links allow: schemes use no others; empty: any
};

struct Suggestion {
  Options options;                     // which check_options() accepts
  double step = 0;                     // the mean over a worker's compute
  double memory = 0;                   // bytes per parameter beside it, its gradient and the rule's state
  std::vector<std::string> reasons{};  // sentences
  std::vector<Evidence> measured{};    // documents of this repository
  std::vector<Evidence> to_measure{};  // studies of this repository without a committed result
};

struct LeftOut {
  std::string scheme;
  std::string why;
};

struct Suggestions {
  std::vector<Suggestion> best;  // of each scheme that suits, in the order of preference
  std::vector<LeftOut> left_out;
};

constexpr double kHidden = 0.1;         // a wait for the link that is worth more mixing, as a part of a step
constexpr double kPatience = 4;         // the price of exactness, in steps of the fastest
constexpr int kMostSuggestedFor = 128;  // workers

// Throws UsageError if a value of the situation is not allowed.
Suggestions suggest(const Situation& situation);

}  // namespace starling
