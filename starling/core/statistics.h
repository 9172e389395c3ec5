// Statistics of a few repeated measurements: mean, deviation, confidence interval, paired t test,
// and Holm's correction for many tests.
#pragma once

#include <optional>
#include <span>
#include <vector>

namespace starling {

struct Described {
  int count = 0;
  double mean = 0;
  std::optional<double> deviation;  // with count - 1; it needs two values
  // Half the width of the 95 % confidence interval of the mean, by Student's t.
  std::optional<double> half_width;
  // Its ends.
  std::optional<double> low() const { return half_width ? std::optional(mean - *half_width) : std::nullopt; }
  std::optional<double> high() const { return half_width ? std::optional(mean + *half_width) : std::nullopt; }
};
// Describes at least one value.
Described describe(std::span<const double> values);

struct PairedTest {
  Described difference;  // of the pairs: first less second
  // Two-sided, by Student's t: the chance of a mean difference as large, if there is none in truth.
  // Absent for fewer than two pairs, and if all differences are 0.
  std::optional<double> p;
};
// Takes at least one pair; both have as many values.
PairedTest paired_t_test(std::span<const double> first, std::span<const double> second);

// Holm 1979: the p values, corrected for their number, in the same order. The chance that any
// difference that is none gets a corrected p below alpha is at most alpha.
std::vector<double> holm(const std::vector<double>& p);

// The regularized incomplete beta function I_x(a, b), for a, b > 0 and x from 0 to 1.
double incomplete_beta(double a, double b, double x);
// The chance that Student's t with so many degrees of freedom (above 0) is beyond -|t| or |t|.
double two_sided_t(double t, double freedom);
// The t for which two_sided_t(t, freedom) = p, for p above 0 and at most 1.
double t_quantile(double p, double freedom);

}  // namespace starling
