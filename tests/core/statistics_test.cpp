// Fixed values are those of scipy 1.14.1: special.betainc, stats.t.sf, stats.t.isf,
// stats.ttest_rel.
#include "starling/core/statistics.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>

namespace starling {
namespace {

// scipy's own quantiles are good to ten digits.
void expect_close(double value, double expected) {
  EXPECT_NEAR(value, expected, 1e-9 * std::abs(expected)) << expected;
}

TEST(Statistics, TheIncompleteBetaFunctionIsScipys) {
  struct Case {
    double a, b, x, value;
  };
  for (const Case& c : {Case{0.5, 0.5, 0.25, 0.3333333333333334},
                        {1, 0.5, 0.9, 0.6837722339831621},
                        {4.5, 0.5, 0.3, 0.001322950584267495},
                        {2, 3, 0.5, 0.6875},
                        {50, 0.5, 0.99, 0.3173043978741973},
                        {500, 0.5, 0.9, 1.045367793835468e-24},
                        {0.5, 1e4, 1e-5, 0.3452759253165484},
                        {30, 20, 0.6, 0.4922998003423522}}) {
    expect_close(incomplete_beta(c.a, c.b, c.x), c.value);
    EXPECT_NEAR(incomplete_beta(c.b, c.a, 1 - c.x), 1 - c.value, 1e-10);
  }
  EXPECT_EQ(incomplete_beta(2, 3, 0), 0);
  EXPECT_EQ(incomplete_beta(2, 3, 1), 1);
}

TEST(Statistics, StudentsTIsScipys) {
  struct Case {
    double t, freedom, p;
  };
  for (const Case& c : {Case{0, 3, 1},
                        {1e-3, 1, 0.9993633804398389},
                        {1, 1, 0.5},
                        {2.5, 2, 0.1296117202215108},
                        {-4.303, 2, 0.04999252498521449},
                        {12, 4, 0.000276428548502973},
                        {40, 9, 1.898299844933983e-11},
                        {300, 2, 1.111092592935522e-05},
                        {1.96, 1e6, 0.04999606758526978}})
    expect_close(two_sided_t(c.t, c.freedom), c.p);
  EXPECT_EQ(two_sided_t(std::numeric_limits<double>::infinity(), 2), 0);
  for (const Case& c : {Case{12.7062047364321, 1, 0.05},
                        {4.302652729696144, 2, 0.05},
                        {2.7764451051978, 4, 0.05},
                        {2.2621571628541, 9, 0.05},
                        {1.983971518449634, 100, 0.05},
                        {5.840909309733354, 3, 0.01},
                        {0.7111417780816957, 7, 0.5}})
    expect_close(t_quantile(c.p, c.freedom), c.t);
  EXPECT_NEAR(t_quantile(1, 5), 0, 1e-12);
}

const std::vector<double> kFirst{0.8121, 0.8093, 0.8177, 0.8064, 0.8130};
const std::vector<double> kSecond{0.8010, 0.8041, 0.8098, 0.8069, 0.8002};

TEST(Statistics, MeanDeviationAndIntervalAreScipys) {
  const Described told = describe(kFirst);
  EXPECT_EQ(told.count, 5);
  expect_close(told.mean, 0.8117);
  expect_close(told.deviation.value(), 0.004233792626003296);
  EXPECT_NEAR(told.mean - told.half_width.value(), 0.806443052120431, 1e-12);
  EXPECT_NEAR(told.mean + told.half_width.value(), 0.8169569478795687, 1e-12);
}

TEST(Statistics, OneValueHasNoDeviation) {
  const Described told = describe(std::vector<double>{0.3});
  EXPECT_EQ(told.count, 1);
  EXPECT_EQ(told.mean, 0.3);
  EXPECT_EQ(told.deviation, std::nullopt);
  EXPECT_EQ(told.half_width, std::nullopt);
}

TEST(Statistics, ThePairedTestIsScipys) {
  const PairedTest test = paired_t_test(kFirst, kSecond);
  EXPECT_NEAR(test.p.value(), 0.03592421461965632, 1e-12);
  EXPECT_NEAR(test.difference.mean, 0.0073, 1e-15);
  EXPECT_NEAR(test.difference.deviation.value(), 0.005251190341246411, 1e-15);
  EXPECT_NEAR(test.difference.mean - test.difference.half_width.value(), 0.0007797860055589771, 1e-12);
  EXPECT_NEAR(paired_t_test(kSecond, kFirst).p.value(), *test.p, 1e-15);
}

TEST(Statistics, ThePairedTestOfOnePairOrOfEqualPairsHasNoP) {
  EXPECT_EQ(paired_t_test(std::vector<double>{1}, std::vector<double>{2}).p, std::nullopt);
  EXPECT_EQ(paired_t_test(kFirst, kFirst).p, std::nullopt);
  EXPECT_EQ(paired_t_test(std::vector<double>{1, 2}, std::vector<double>{2, 3}).p, 0);  // always by 1
}

TEST(Statistics, HolmIsThatOfThePaper) {
  // By hand: 4 * 0.01; 3 * 0.02; the largest so far; 1 * 0.9.
  EXPECT_THAT(holm({0.02, 0.9, 0.01, 0.025}),
              testing::ElementsAre(testing::DoubleEq(0.06), testing::DoubleEq(0.9), testing::DoubleEq(0.04),
                                   testing::DoubleEq(0.06)));
  EXPECT_THAT(holm({0.4, 0.6}), testing::ElementsAre(0.8, 0.8));
  EXPECT_THAT(holm({0.7, 0.6, 0.9}), testing::Each(1));
  EXPECT_THAT(holm({}), testing::IsEmpty());
}

}  // namespace
}  // namespace starling
