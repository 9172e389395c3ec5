#include "starling/optim/data_edits.h"

#include <algorithm>

#include <fmt/format.h>

#include "starling/optim/agreement.h"

namespace starling {

DataEdits::Seen DataEdits::seen(const at::Tensor& parameter) {
  if (parameter.is_inference()) return {};  // it has no version
  return {static_cast<std::uint32_t>(parameter._version()), checksum_of({parameter})};
}

void DataEdits::note(const Groups& groups) {
  seen_.clear();
  for (const auto& group : groups) {
    auto& of_group = seen_.emplace_back();
    for (const at::Tensor& parameter : group.params()) of_group.push_back(seen(parameter));
  }
}

void DataEdits::look(const Groups& groups, const Log& log) const {
  for (std::size_t g = 0; g < std::min(seen_.size(), groups.size()); ++g) {
    const auto& parameters = groups[g].params();
    for (std::size_t p = 0; p < std::min(seen_[g].size(), parameters.size()); ++p) {
      const Seen before = seen_[g][p], now = seen(parameters[p]);
      if (now.version == before.version && now.checksum != before.checksum)
        log(Level::warning,
            fmt::format(
                "parameter {} of group {} was changed since the last step, but its version was not: edit "
                "parameters under torch.no_grad(), not through .data",
                p, g));
    }
  }
}

}  // namespace starling
