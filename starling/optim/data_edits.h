// With STARLING_LOG=debug: names parameters that were changed past torch's version counter, as
// through `p.data`. The optimizer then takes values of the last exchange for those of now.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <torch/optim/optimizer.h>

#include "starling/core/log.h"

namespace starling {

class DataEdits {
 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;

  // Before a step: warns of changes since note(). It reads all parameters.
  void look(const Groups& groups, const Log& log) const;
  // After the step.
  void note(const Groups& groups);

 private:
  struct Seen {
    std::uint32_t version = 0;
    std::uint32_t checksum = 0;
  };
  static Seen seen(const at::Tensor& parameter);
  std::vector<std::vector<Seen>> seen_;  // by group
};

}  // namespace starling
