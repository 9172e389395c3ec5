#include "starling/models/classifier.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <gmock/gmock.h>

#include "starling/core/error.h"

namespace starling {
namespace {

bool have_equal_values(const Classifier& a, const Classifier& b) {
  const auto x = a.parameters(), y = b.parameters();
  if (x.size() != y.size()) return false;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!at::equal(x[i], y[i])) return false;
  }
  return true;
}

TEST(Classifier, TheSeedAloneDecidesTheInitialValues) {
  for (const std::string& name : known_classifiers()) {
    for (const char* dtype : {"fp32", "bf16", "fp16"}) {
      SCOPED_TRACE(name + " " + dtype);
      const auto first = make_classifier(name, 8, dtype, 7);
      at::rand({5});  // draws from the generator in between change nothing
      EXPECT_TRUE(have_equal_values(*first, *make_classifier(name, 8, dtype, 7)));
      EXPECT_FALSE(have_equal_values(*first, *make_classifier(name, 8, dtype, 8)));
    }
  }
}

TEST(Classifier, RefusesAnUnknownName) {
  EXPECT_THAT([] { make_classifier("resnet-9", 8, "fp32", 1); },
              testing::ThrowsMessage<UsageError>(
                  "model.name = resnet-9: unknown, did you mean resnet-8?, allowed is resnet-8"));
}

}  // namespace
}  // namespace starling
