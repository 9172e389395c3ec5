// A plan as one self-contained HTML file: `starling plan --html FILE`.
#pragma once

#include <string>
#include <vector>

#include "cli/planned_world.h"

namespace starling::cli {

// A page that loads nothing, for steps that send ahead. `file`: the name of the profile. `knee`: a
// sentence on the number of workers up to which more are worth it.
std::string html_report(const std::vector<PlannedWorld>& worlds, const Profile& profile,
                        const std::string& file, const std::string& knee);

}  // namespace starling::cli
