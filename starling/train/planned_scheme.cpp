#include "starling/train/planned_scheme.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/optim/options.h"
#include "starling/optim/schemes/table.h"

namespace starling {

std::optional<Mixing> planned_as(const SchemeChoice& scheme) {
  const Path path = scheme_info(scheme.name).path_of(SchemeSettings(scheme));
  if (path == Path::ahead) return Mixing::ahead;
  if (path == Path::inside) return Mixing::inside;
  return std::nullopt;
}

Mixing mixing_of(const SchemeChoice& scheme) {
  if (const auto mixing = planned_as(scheme)) return *mixing;
  const bool in_pairs = scheme_info(scheme.name).traits.path == Path::pairs;
  throw UsageError(fmt::format("scheme \"{}\" has no exchange in its steps: {}", scheme.name,
                               in_pairs ? "its workers average in pairs beside training, and wait for nobody"
                                        : "it averages gradients within backward()"));
}

std::string scheme_planned_as(Mixing mixing) {
  const std::vector<std::string> names = scheme_names();
  return *std::ranges::find(names, std::optional(mixing),
                            [](const std::string& name) { return planned_as(name); });
}

Work work_on(const Profile& profile, const Options& options, const Schedule& schedule, const Block& like) {
  Work work = work_of(profile);
  const double like_bytes = static_cast<double>(like.length) * sizeof(float);
  const SentSize of_like = depends_on_shapes(options) ? sent_size(like, schedule, options) : SentSize();
  for (std::size_t b = 0; b < profile.blocks.size(); ++b) {
    const double bytes = profile.blocks[b];
    if (depends_on_shapes(options)) {
      work.block_bytes[b] = of_like.block * bytes / like_bytes;
      work.mean_bytes[b] = of_like.mean * bytes / like_bytes;
      continue;
    }
    const Block block{.length = std::llround(bytes / sizeof(float))};
    const SentSize size = sent_size(block, schedule, options);
    work.block_bytes[b] = size.block;
    work.mean_bytes[b] = size.mean;
  }
  work.groups = contents_of(options).has_mean();
  const bool alone = scheme_of(options).traits.edges == EdgeKind::none;
  work.every = alone ? std::max(1, options.mean_every) : steps_between_exchanges(options);
  work.mean_every = options.mean_every;
  return work;
}

Forecast simulate(const Network& network, const Profile& profile, const Options& options,
                  const Schedule& schedule, const Block& like, const Horizon& run) {
  const Mixing mixing = mixing_of(options.scheme);
  return simulate(network, work_on(profile, options, schedule, like), schedule, mixing, run);
}

}  // namespace starling
