#include "starling/data/image_view.h"

#include <cmath>
#include <cstdint>

#include <gtest/gtest.h>

namespace starling {
namespace {

constexpr ImageSize kImage{500, 375};

void expect_inside(ImageSize image, const ImageView& view) {
  EXPECT_TRUE(view.cut);
  EXPECT_GE(view.x, 0);
  EXPECT_GE(view.y, 0);
  EXPECT_GE(view.width, 1);
  EXPECT_GE(view.height, 1);
  EXPECT_LE(view.x + view.width, image.width);
  EXPECT_LE(view.y + view.height, image.height);
}

// The distributions of torchvision's RandomResizedCrop: area and logarithm of the shape are uniform
// among those that fit.
TEST(RandomView, HasARandomAreaShapeAndPlace) {
  constexpr int kViews = 20000;
  double area = 0, shape = 0, place = 0, flips = 0;
  for (std::uint64_t seed = 0; seed < kViews; ++seed) {
    const ImageView view = random_view(kImage, {.least_area = 0.2}, seed);
    expect_inside(kImage, view);
    const double share = view.width * view.height / (500.0 * 375), ratio = view.width / view.height;
    EXPECT_GT(share, 0.195);
    EXPECT_GT(ratio, 0.73);
    EXPECT_LT(ratio, 1.36);
    area += share;
    shape += std::log(ratio);
    if (view.width < 500) place += view.x / (500 - view.width);
    flips += view.flip;
  }
  double fitting = 0, expected_area = 0, expected_shape = 0;
  for (double share = 0.2005; share < 1; share += 0.001) {
    for (double log_ratio = std::log(0.75); log_ratio < std::log(4.0 / 3); log_ratio += 0.001) {
      const double wanted = share * 500 * 375, ratio = std::exp(log_ratio);
      if (std::sqrt(wanted * ratio) > 500 || std::sqrt(wanted / ratio) > 375) continue;
      ++fitting;
      expected_area += share;
      expected_shape += log_ratio;
    }
  }
  EXPECT_NEAR(area / kViews, expected_area / fitting, 0.006);
  EXPECT_NEAR(shape / kViews, expected_shape / fitting, 0.006);
  EXPECT_NEAR(place / kViews, 0.5, 0.02);
  EXPECT_NEAR(flips / kViews, 0.5, 0.02);
}

TEST(RandomView, DependsOnTheSeedAlone) {
  const ImageView a = random_view(kImage, {}, 7), b = random_view(kImage, {}, 7),
                  c = random_view(kImage, {}, 8);
  EXPECT_EQ(a.x, b.x);
  EXPECT_EQ(a.height, b.height);
  EXPECT_EQ(a.flip, b.flip);
  EXPECT_TRUE(a.x != c.x || a.y != c.y || a.width != c.width);
  for (std::uint64_t seed = 0; seed < 50; ++seed)
    EXPECT_FALSE(random_view(kImage, {.flip = false}, seed).flip);
}

TEST(RandomView, OfALongImageIsItsMiddle) {
  for (const ImageSize image : {ImageSize{1000, 9}, ImageSize{9, 1000}}) {
    const ImageView view = random_view(image, {.least_area = 1}, 3);
    expect_inside(image, view);
    EXPECT_EQ(std::min(view.width, view.height), 9);
    EXPECT_EQ(std::max(view.width, view.height), 12);
    EXPECT_NEAR(view.x + view.width / 2, image.width / 2.0, 0.6);
    EXPECT_NEAR(view.y + view.height / 2, image.height / 2.0, 0.6);
  }
  for (const ImageSize image : {ImageSize{1, 1}, ImageSize{1, 65500}, ImageSize{2, 1}})
    for (std::uint64_t seed = 0; seed < 100; ++seed) expect_inside(image, random_view(image, {}, seed));
}

// Resize(256) makes 341x256 of 500x375; CenterCrop(224) begins at round(58.5) = 58 and at 16.
TEST(CentreView, IsTheMiddleOfTheResizedImage) {
  const ImageView view = centre_view(kImage, 256, 224);
  EXPECT_FALSE(view.cut);
  EXPECT_DOUBLE_EQ(view.x, 58 * 500.0 / 341);
  EXPECT_DOUBLE_EQ(view.width, 224 * 500.0 / 341);
  EXPECT_DOUBLE_EQ(view.y, 16 * 375.0 / 256);
  EXPECT_DOUBLE_EQ(view.height, 224 * 375.0 / 256);
}

}  // namespace
}  // namespace starling
