#include "starling/optim/schemes/weights.h"

#include <utility>

#include <fmt/format.h>

namespace starling {
namespace {

// Wider than weights of any run: they begin as 1, nobody pushes below kLeastWeight, and all workers
// together have as much as there are workers. Within it nothing overflows.
constexpr double kLeast = 1e-6, kMost = 1e6;

}  // namespace

void visit_weights(StateVisitor& visitor, const std::vector<double>& w,
                   std::function<void(std::span<const double>)> set) {
  visitor.numbers("weights", {.fresh = std::vector<double>(w.size(), 1),
                              .now = w,
                              .set = std::move(set),
                              .refusal = [](std::span<const double> given) -> std::string {
                                for (const double one : given) {
                                  if (!(one >= kLeast && one <= kMost))
                                    return fmt::format("{} is not from {} to {}", one, kLeast, kMost);
                                }
                                return "";
                              }});
}

}  // namespace starling
