// mixing.topology = "auto": before the first step the planner chooses the schedule (plan/choose.h)
// for the recipe's wire, scheme and blocks.
//
//   network   from mixing.profile, else from a short probe (probe/probe.h)
//   compute   from mixing.profile, else from kMeasuredSteps steps of the real model with learning
//             rate 0, which change nothing
//
// Rank 0 chooses and tells the others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "starling/optim/optimizer_options.h"
#include "starling/train/learner.h"
#include "starling/train/recipe.h"
#include "starling/world/world.h"

namespace starling {

constexpr std::int64_t kMeasuredSteps = 30;

// The schedules that the options accept, in the order of plan/schedules.h, if they are planned over
// this wire (plan/choose.h). If there are none, throws check_options()'s refusal of the first.
std::vector<std::string> schedules_for(Options options, int workers, int local_workers, bool alike = true);

inline bool chooses_topology(const Recipe& recipe) { return recipe.mixing.topology == "auto"; }

// Checks the recipe before workers start. Throws UsageError if the planner cannot choose for this
// recipe; if the profile is damaged, or has another number of workers or another model size; and if
// a profile is given without "auto".
void check_auto_topology(const Recipe& recipe, int workers);

struct ChosenTopology {
  std::string name;
  std::string why;  // one line
};
// Collective, with the same result on all workers. The learner's model does not change.
ChosenTopology choose_topology(const Recipe& recipe, const World& world, Learner& learner);

}  // namespace starling
