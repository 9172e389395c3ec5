#include "starling/core/statistics.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

namespace starling {
namespace {

// The continued fraction of I_x(a, b) without its front factor (DLMF 8.17.22), by Lentz's method.
// It converges fast for x < (a + 1) / (a + b + 2).
double beta_fraction(double a, double b, double x) {
  constexpr double kTiny = 1e-300, kClose = 1e-16;
  constexpr int kMostTerms = 10'000;
  const auto safe = [](double value) { return std::abs(value) < kTiny ? kTiny : value; };
  double c = 1, d = 1 / safe(1 - (a + b) * x / (a + 1)), fraction = d;
  for (int m = 1; m < kMostTerms; ++m) {
    const auto step = [&](double term) {
      d = 1 / safe(1 + term * d);
      c = safe(1 + term / c);
      fraction *= d * c;
      return d * c;
    };
    step(m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)));
    const double change = step(-(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)));
    if (std::abs(change - 1) <= kClose) break;
  }
  return fraction;
}

}  // namespace

double incomplete_beta(double a, double b, double x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  const double front =
      std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) + a * std::log(x) + b * std::log1p(-x));
  if (x < (a + 1) / (a + b + 2)) return front * beta_fraction(a, b, x) / a;
  return 1 - front * beta_fraction(b, a, 1 - x) / b;
}

double two_sided_t(double t, double freedom) {
  if (std::isinf(t)) return 0;
  // Either argument may round to 1, so the smaller one is used.
  const double square = t * t;
  if (square < freedom) return 1 - incomplete_beta(0.5, freedom / 2, square / (freedom + square));
  return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + square));
}

double t_quantile(double p, double freedom) {
  double low = 0, high = 1;
  while (two_sided_t(high, freedom) > p && high < std::numeric_limits<double>::max() / 4)
    low = high, high *= 2;
  while (true) {
    const double middle = low + (high - low) / 2;
    if (middle <= low || middle >= high) return middle;
    (two_sided_t(middle, freedom) > p ? low : high) = middle;
  }
}

Described describe(std::span<const double> values) {
  const auto n = static_cast<double>(values.size());
  Described told{.count = static_cast<int>(values.size()), .deviation = {}, .half_width = {}};
  told.mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  if (values.size() < 2) return told;
  double squares = 0;
  for (const double value : values) squares += (value - told.mean) * (value - told.mean);
  told.deviation = std::sqrt(squares / (n - 1));
  told.half_width = t_quantile(0.05, n - 1) * *told.deviation / std::sqrt(n);
  return told;
}

PairedTest paired_t_test(std::span<const double> first, std::span<const double> second) {
  std::vector<double> differences(first.size());
  std::ranges::transform(first, second, differences.begin(), std::minus());
  PairedTest test{.difference = describe(differences), .p = {}};
  if (differences.size() < 2 || std::ranges::count(differences, 0.0) == std::ssize(differences)) return test;
  const auto n = static_cast<double>(differences.size());
  test.p = two_sided_t(test.difference.mean / (*test.difference.deviation / std::sqrt(n)), n - 1);
  return test;
}

std::vector<double> holm(const std::vector<double>& p) {
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return p[i]; });
  std::vector<double> corrected(p.size());
  double most = 0;
  for (std::size_t k = 0; k < order.size(); ++k) {
    most = std::max(most, static_cast<double>(p.size() - k) * p[order[k]]);
    corrected[order[k]] = std::min(1.0, most);
  }
  return corrected;
}

}  // namespace starling
