#include "starling/core/input.h"

#include <new>

#include <gtest/gtest.h>

#include "tests/refusal.h"

namespace starling {
namespace {

TEST(NamedInput, ReturnsWhatIsRead) {
  EXPECT_EQ(named_input([] { return 7; }), 7);
  int value = 0;
  EXPECT_EQ(&named_input([&]() -> int& { return value; }), &value);
}

TEST(NamedInput, AnErrorMeansAWrongInput) {
  const auto fails = [] { throw Error("a.toml:3: broken"); };
  EXPECT_EQ(refusal<UsageError>([&] { named_input(fails); }), "a.toml:3: broken");
  EXPECT_EQ(refusal<UsageError>([] { named_input([] { throw UsageError("unknown"); }); }), "unknown");
}

TEST(NamedInput, OtherExceptionsStayWhatTheyAre) {
  EXPECT_THROW(named_input([] { throw std::bad_alloc(); }), std::bad_alloc);
}

}  // namespace
}  // namespace starling
