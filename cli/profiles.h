// What was measured of a cluster and of a run, from one file or from two.
#pragma once

#include <string>

#include "starling/plan/profile.h"

namespace starling::cli {

// The profile of --profile, with the compute of --compute where that is not empty. Throws UsageError where a half is missing.
// Says on stderr where the compute is of fewer workers, which then stand for all, or of more.
Profile whole_profile(const std::string& profile, const std::string& compute);

}  // namespace starling::cli
