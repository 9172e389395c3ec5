// What was measured of a cluster and of a run, from one file or from two.
#pragma once

#include <string>

#include "starling/plan/profile.h"

namespace starling::cli {

// The profile of --profile, with the compute of --compute where that is not empty. Throws UsageError where a half is missing.
Profile whole_profile(const std::string& profile, const std::string& compute);

}  // namespace starling::cli
