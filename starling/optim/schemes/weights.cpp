#include "starling/optim/schemes/weights.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

namespace starling {

void visit_weights(StateVisitor& visitor, const std::vector<double>& w,
                   std::function<void(std::span<const double>)> set) {
  visitor.numbers("weights", {.fresh = std::vector<double>(w.size(), 1),
                              .now = w,
                              .set = std::move(set),
                              .refusal = [](std::span<const double> given) -> std::string {
                                for (const double one : given) {
                                  if (!(one > 0) || !std::isfinite(one))
                                    return fmt::format("{} is not above 0 and finite", one);
                                }
                                return "";
                              }});
}

}  // namespace starling
