#include "cli/profiles.h"

#include <fmt/format.h>

#include "starling/core/error.h"

namespace starling::cli {

Profile whole_profile(const std::string& profile_file, const std::string& compute_file) {
  const Profile profile = read_profile(profile_file);
  if (!profile.has_network()) {
    throw UsageError(
        fmt::format("{}: it holds no network (hosts): `starling probe` measures one; then this file is for "
                    "--compute",
                    profile_file));
  }
  if (compute_file.empty()) {
    if (profile.has_compute()) return profile;
    throw UsageError(
        fmt::format("{}: it holds no compute: `starling train --profile-out FILE` records it; then --compute "
                    "FILE",
                    profile_file));
  }
  const Profile compute = read_profile(compute_file);
  if (!compute.has_compute()) throw UsageError(fmt::format("{}: it holds no compute (blocks)", compute_file));
  return joined(profile, compute);
}

}  // namespace starling::cli
