// The measurements of a cluster and of a run, from one file or from two.
#pragma once

#include <string>

#include "starling/plan/profile.h"

namespace starling::cli {

// The profile of --profile, with the compute of --compute if that is not empty. Throws UsageError
// if a half is missing. Prints a note on stderr if the compute has fewer workers, which then stand
// for all, or more.
Profile whole_profile(const std::string& profile, const std::string& compute);

}  // namespace starling::cli
