#include "starling/data/class_split.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/random.h"
#include "starling/core/text.h"

namespace starling {
namespace {

constexpr std::string_view kDirichlet = "dirichlet:";

// Keys of random_bits(), so that no two draws of one seed are the same.
enum class Draw : std::uint64_t { order = 0x5917, gamma, choice };

class Dice {
 public:
  Dice(std::uint64_t seed, Draw draw, std::uint64_t a, std::uint64_t b)
      : key_(random_bits({seed, static_cast<std::uint64_t>(draw), a, b})) {}
  std::uint64_t bits() { return random_bits({key_, count_++}); }
  double uniform() { return 1 - uniform_of(bits()); }  // in (0, 1]
  double normal() {                                    // Box and Muller
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  const std::uint64_t key_;
  std::uint64_t count_ = 0;
};

// The logarithm of a draw from the gamma distribution: Marsaglia & Tsang 2000. In logarithms,
// because draws of a small shape underflow.
double log_gamma_draw(double shape, Dice& dice) {
  if (shape < 1) return log_gamma_draw(shape + 1, dice) + std::log(dice.uniform()) / shape;
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = dice.normal(), v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(dice.uniform()) < x * x / 2 + d - d * v + d * std::log(v))
      return std::log(d) + std::log(v);
  }
}

// The examples of each class, in random order.
std::vector<std::vector<std::int64_t>> by_class(const ClassSet& set, std::uint64_t seed) {
  std::vector<std::vector<std::int64_t>> examples(static_cast<std::size_t>(set.classes));
  for (std::int64_t i = 0; i < set.examples; ++i)
    examples.at(static_cast<std::size_t>(set.label(i))).push_back(i);
  for (std::size_t c = 0; c < examples.size(); ++c) {
    Dice dice(seed, Draw::order, c, 0);
    for (std::size_t i = examples[c].size(); i > 1; --i)
      std::swap(examples[c][i - 1], examples[c][dice.bits() % i]);
  }
  return examples;
}

// Chooses classes for one worker, in proportion to its q among those that still have examples.
class Chooser {
 public:
  Chooser(std::vector<double> log_q, Dice dice) : log_q_(std::move(log_q)), dice_(dice) {}

  std::size_t choose(const std::vector<std::size_t>& left, int gone) {
    if (gone != gone_) sum_up(left, gone);
    const auto at = std::ranges::upper_bound(sums_, uniform_of(dice_.bits()) * sums_.back());
    const auto found = static_cast<std::size_t>(at - sums_.begin());
    return found < sums_.size() ? found : last_;  // rounding may reach the sum
  }

 private:
  // `gone`: the number of classes without examples. It only grows.
  void sum_up(const std::vector<std::size_t>& left, int gone) {
    double most = -std::numeric_limits<double>::infinity();
    for (std::size_t c = 0; c < left.size(); ++c) {
      if (left[c] > 0) most = std::max(most, log_q_[c]);
    }
    double sum = 0;
    sums_.clear();
    for (std::size_t c = 0; c < left.size(); ++c) {
      if (left[c] > 0 && log_q_[c] >= most) last_ = c;
      sums_.push_back(sum += left[c] > 0 ? std::exp(log_q_[c] - most) : 0);
    }
    gone_ = gone;
  }

  const std::vector<double> log_q_;
  Dice dice_;
  std::vector<double> sums_;
  std::size_t last_ = 0;  // the likeliest class
  int gone_ = -1;
};

std::size_t share_size(std::int64_t examples, int rank, int workers) {
  return static_cast<std::size_t>(examples / workers + (rank < examples % workers ? 1 : 0));
}

// The workers take one example after the other, in turn, until each has its share.
Shares dirichlet_shares(const ClassSet& set, double alpha, int workers, std::uint64_t seed) {
  auto examples = by_class(set, seed);
  std::vector<std::size_t> left;
  for (const auto& each : examples) left.push_back(each.size());
  int gone = static_cast<int>(std::ranges::count(left, std::size_t{0}));
  const double scale = alpha * (set.classes - gone) / static_cast<double>(set.examples);
  std::vector<Chooser> choosers;
  for (int rank = 0; rank < workers; ++rank) {
    const auto worker = static_cast<std::uint64_t>(rank);
    std::vector<double> log_q;
    for (std::size_t c = 0; c < left.size(); ++c) {
      Dice dice(seed, Draw::gamma, worker, c);
      log_q.push_back(left[c] > 0 ? log_gamma_draw(scale * static_cast<double>(left[c]), dice) : 0);
    }
    choosers.emplace_back(std::move(log_q), Dice(seed, Draw::choice, worker, 0));
  }
  Shares shares(static_cast<std::size_t>(workers));
  for (std::int64_t taken = 0; taken < set.examples; ++taken) {
    const auto rank = static_cast<std::size_t>(taken % workers);
    const std::size_t c = choosers[rank].choose(left, gone);
    shares[rank].push_back(examples[c][--left[c]]);
    if (left[c] == 0) ++gone;
  }
  return shares;
}

Shares sorted_shares(const ClassSet& set, int workers, std::uint64_t seed) {
  std::vector<std::int64_t> sorted;
  for (const auto& examples : by_class(set, seed))
    sorted.insert(sorted.end(), examples.begin(), examples.end());
  Shares shares;
  auto next = sorted.cbegin();
  for (int rank = 0; rank < workers; ++rank) {
    const auto end = next + static_cast<std::ptrdiff_t>(share_size(set.examples, rank, workers));
    shares.emplace_back(next, end);
    next = end;
  }
  return shares;
}

}  // namespace

ClassSplit read_class_split(const std::string& text, const std::string& where) {
  if (text == "iid") return {ClassSplit::Kind::iid};
  if (text == "whole") return {ClassSplit::Kind::whole};
  if (text == "by-class") return {ClassSplit::Kind::by_class};
  if (text.starts_with(kDirichlet)) {
    const auto alpha = parse_number<double>(text.substr(kDirichlet.size()));
    if (alpha && *alpha >= ClassSplit::kLeastAlpha && *alpha <= ClassSplit::kMostAlpha)
      return {ClassSplit::Kind::dirichlet, *alpha};
  }
  throw UsageError(
      fmt::format("{} = {}{}: allowed is iid, whole, by-class, or dirichlet:ALPHA with ALPHA from {} to {}",
                  where, short_of(text), did_you_mean(text, {"iid", "whole", "by-class"}),
                  ClassSplit::kLeastAlpha, ClassSplit::kMostAlpha));
}

Shares kept_shares(const ClassSet& set, const ClassSplit& split, int workers, std::uint64_t seed) {
  return split.kind == ClassSplit::Kind::by_class ? sorted_shares(set, workers, seed)
                                                  : dirichlet_shares(set, split.alpha, workers, seed);
}

Sampler make_sampler(const ClassSet& set, const ClassSplit& split, std::int64_t batch, Drawer who,
                     std::uint64_t seed) {
  if (!split.keeps()) {
    const Split how = split.kind == ClassSplit::Kind::whole ? Split::whole : Split::iid;
    return {set.examples, batch, std::move(who), seed, how};
  }
  Shares shares = kept_shares(set, split, who.workers, seed);
  std::vector<std::int64_t>& mine = shares[static_cast<std::size_t>(who.rank)];
  return {std::move(mine), set.examples, batch, std::move(who), seed};
}

std::vector<std::vector<std::int64_t>> class_counts(const ClassSet& set, const ClassSplit& split,
                                                    std::int64_t batch, int workers, std::uint64_t seed) {
  Shares shares;
  if (split.keeps()) {
    shares = kept_shares(set, split, workers, seed);
  } else if (split.kind == ClassSplit::Kind::whole) {
    shares.assign(static_cast<std::size_t>(workers),
                  std::vector<std::int64_t>(static_cast<std::size_t>(set.examples)));
    for (auto& share : shares) std::iota(share.begin(), share.end(), std::int64_t{0});
  } else {
    for (int rank = 0; rank < workers; ++rank) {
      Sampler sampler = make_sampler(set, split, batch, {rank, workers}, seed);
      auto& share = shares.emplace_back();
      for (std::int64_t k = 0; k < sampler.batches_per_epoch(); ++k) {
        const auto drawn = sampler.batch(k);
        share.insert(share.end(), drawn.begin(), drawn.end());
      }
    }
  }
  std::vector<std::vector<std::int64_t>> counts;
  for (const auto& share : shares) {
    auto& mine = counts.emplace_back(static_cast<std::size_t>(set.classes));
    for (const std::int64_t example : share) ++mine.at(static_cast<std::size_t>(set.label(example)));
  }
  return counts;
}

}  // namespace starling
