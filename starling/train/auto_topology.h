// mixing.topology = "auto": before the first step the planner chooses the schedule (plan/choose.h) for the recipe's own wire,
// scheme and blocks.
//
//   network   that of mixing.profile, else a short probe (probe/probe.h)
//   compute   that of mixing.profile, else kMeasuredSteps steps of the real model with learning rate 0, which change nothing
//
// Rank 0 chooses, and tells the others.
#pragma once

#include <optional>
#include <string>

#include "starling/optim/schemes/scheme.h"
#include "starling/plan/simulate.h"
#include "starling/train/learner.h"
#include "starling/train/recipe.h"
#include "starling/world/world.h"

namespace starling {

constexpr std::int64_t kMeasuredSteps = 30;

// As what the planner simulates a scheme; none: it does not know it.
std::optional<Mixing> planned_as(const SchemeInfo& scheme);
// The first scheme that it simulates as this.
std::string scheme_planned_as(Mixing mixing);

inline bool chooses_topology(const Recipe& recipe) { return recipe.mixing.topology == "auto"; }

// What can be said before workers are started. Throws UsageError where nothing can be chosen for this recipe, and for a profile
// that is none, or of another number of workers, or of a model of another size; also where there is a profile and nothing to choose.
void check_auto_topology(const Recipe& recipe, int workers);

struct ChosenTopology {
  std::string name;
  std::string why;  // one line
};
// Collective; the same on all workers. The learner's model is as before.
ChosenTopology choose_topology(const Recipe& recipe, const World& world, Learner& learner);

}  // namespace starling
