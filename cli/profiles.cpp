#include "cli/profiles.h"

#include <cstdio>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/text.h"

namespace starling::cli {

Profile whole_profile(const std::string& profile_file, const std::string& compute_file) {
  const Profile profile = read_profile(profile_file);
  if (!profile.has_network()) {
    throw UsageError(fmt::format(
        "{}: it holds no network (hosts): `starling probe` measures one; pass this file to --compute",
        profile_file));
  }
  if (compute_file.empty()) {
    if (profile.has_compute()) return profile;
    throw UsageError(fmt::format(
        "{}: it holds no compute: record it by `starling train --profile-out FILE`, then pass --compute FILE",
        profile_file));
  }
  const Profile compute = read_profile(compute_file);
  if (!compute.has_compute()) throw UsageError(fmt::format("{}: it holds no compute (blocks)", compute_file));
  const int recorded = compute.workers(), n = profile.workers();
  if (recorded < n)
    fmt::print(stderr, "{}: {} stand{} for {} workers\n", printable(compute_file),
               recorded == 1 ? "its one worker" : fmt::format("its {} workers", recorded),
               recorded == 1 ? "s" : "", n);
  if (recorded > n)
    fmt::print(stderr, "{}: the first {} of its {} workers are used\n", printable(compute_file), n, recorded);
  return joined(profile, compute);
}

}  // namespace starling::cli
