// The split of a training set with classes among workers: data.split.
//
//   iid              each epoch is shuffled and cut anew (sampler.h)
//   whole            each worker goes through the whole set by itself (sampler.h)
//   dirichlet:ALPHA  each worker keeps one share, whose classes follow q ~ Dirichlet(ALPHA C p):
//                    Hsu, Qi & Brown 2019, arXiv 1909.06335. C is the number of classes, p the
//                    share of each class in the set. So ALPHA belongs to one class of a balanced
//                    set, as in Lin et al. 2021, arXiv 2102.04761; the ALPHA of Hsu et al. is C
//                    times as large
//   by-class         each worker keeps one share of the set sorted by class
//
// Shares of the last two are disjoint, hold every example, and differ by at most one example in
// size. They follow from the labels, the seed and the number of workers alone, so all workers know
// them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "starling/data/sampler.h"

namespace starling {

struct ClassSplit {
  enum class Kind { iid, whole, dirichlet, by_class };
  Kind kind = Kind::iid;
  double alpha = 0;  // dirichlet: from kLeastAlpha to kMostAlpha

  static constexpr double kLeastAlpha = 1e-3, kMostAlpha = 1e6;
  // Whether each worker keeps one share.
  bool keeps() const { return kind == Kind::dirichlet || kind == Kind::by_class; }
};
// Throws UsageError, which begins with `where`: "recipe.toml:7: data.split".
ClassSplit read_class_split(const std::string& text, const std::string& where);

struct ClassSet {
  std::int64_t examples = 0;
  int classes = 0;
  std::function<std::int64_t(std::int64_t example)> label;  // from 0 to classes - 1
};

using Shares = std::vector<std::vector<std::int64_t>>;  // examples, by rank
// The shares that workers keep. `split` is dirichlet or by-class.
Shares kept_shares(const ClassSet& set, const ClassSplit& split, int workers, std::uint64_t seed);

// Throws UsageError as Sampler does.
Sampler make_sampler(const ClassSet& set, const ClassSplit& split, std::int64_t batch, Drawer who,
                     std::uint64_t seed);

// The examples of each class in each worker's share, by rank. With iid it is the share of the first
// epoch.
std::vector<std::vector<std::int64_t>> class_counts(const ClassSet& set, const ClassSplit& split,
                                                    std::int64_t batch, int workers, std::uint64_t seed);

}  // namespace starling
