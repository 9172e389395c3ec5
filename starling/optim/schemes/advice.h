// Advice to users who have to choose a scheme (train/choose_scheme.h).
#pragma once

#include <array>
#include <string_view>

namespace starling {

struct Evidence {
  std::string_view what;
  std::string_view where;  // DOCUMENT.md#SECTION; or a study (.toml), whose result is not committed yet
};
inline constexpr Evidence kSkewStudy{"skewed classes", "recipes/studies/skew.toml"};
inline constexpr Evidence kSlowLinkStudy{"loss against bytes, behind all-reduce in 600 steps",
                                         "docs/studies/slow-links.md#slow-links-loss-against-bytes"};

struct SchemeAdvice {
  std::string_view good_for{};       // completes "good for"
  std::string_view rule{};           // the rule that it is meant for; empty: any
  std::string_view topology{};       // that suits it; empty: the planner chooses
  std::string_view when_one_dies{};  // empty: the others go on, with its weight on themselves
  bool bears_skew = false;  // skewed data harm less than with the plain scheme, though it is not exact
  std::array<Evidence, 4> evidence{};  // those without a text are no evidence
};
// SchemeAdvice::when_one_dies, if what a worker tracks or corrects leaves with it.
inline constexpr std::string_view kLeavesItsPart =
    "the others then end beside the optimum, until a checkpoint is loaded";

}  // namespace starling
