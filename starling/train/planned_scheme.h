// A scheme as the planner (plan/) sees it: when it mixes, what it sends, and in which steps.
#pragma once

#include <optional>
#include <string>

#include "starling/optim/schemes/scheme.h"
#include "starling/optim/sent_size.h"
#include "starling/plan/profile.h"
#include "starling/plan/simulate.h"
#include "starling/topology/graph.h"

namespace starling {

// When a scheme with its own options mixes; none: its steps exchange nothing in rounds.
std::optional<Mixing> planned_as(const SchemeChoice& scheme);
// The same. Throws UsageError with the reason if there is none.
Mixing mixing_of(const SchemeChoice& scheme);
// The first scheme that the planner simulates as this.
std::string scheme_planned_as(Mixing mixing);

// The work of a profile with these options, on a schedule that they give (schedule_of()). `like`: a
// block with the shapes of the model's parameters, or typical_block(). It is read only if the bytes
// depend on shapes.
Work work_on(const Profile& profile, const Options& options, const Schedule& schedule, const Block& like);

// The step of a scheme in rounds. Throws UsageError with the reason for other schemes, and as the
// other simulate().
Forecast simulate(const Network& network, const Profile& profile, const Options& options,
                  const Schedule& schedule, const Block& like, const Horizon& run);

}  // namespace starling
