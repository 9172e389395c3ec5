#include "starling/core/log.h"

#include <cstdlib>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "tests/refusal.h"

namespace starling {
namespace {

std::string said(const char* wanted) {
  ::setenv("STARLING_LOG", wanted, 1);
  testing::internal::CaptureStderr();
  const Log log = log_to_stderr(3);
  log(Level::debug, "detail");
  log(Level::info, "news");
  log(Level::warning, "trouble");
  ::unsetenv("STARLING_LOG");
  return testing::internal::GetCapturedStderr();
}

TEST(Log, SaysWhatTheEnvironmentWants) {
  EXPECT_EQ(said("warning"), "starling[3]: trouble\n");
  EXPECT_EQ(said("info"), "starling[3]: news\nstarling[3]: trouble\n");
  EXPECT_EQ(said("debug"), "starling[3]: detail\nstarling[3]: news\nstarling[3]: trouble\n");
  EXPECT_EQ(said(""), "starling[3]: trouble\n");
  ::unsetenv("STARLING_LOG");
  EXPECT_EQ(level_from_environment(), Level::warning);
}

TEST(Log, AMessageIsOneLine) {
  testing::internal::CaptureStderr();
  log_to_stderr(3, Level::info)(Level::info, "a\nb \x1b[31m");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "starling[3]: a\\u000Ab \\u001B[31m\n");
}

TEST(Log, RefusesWhatIsNoLevel) {
  for (const auto& [wanted, near] : {std::pair{"loud", ""}, {"debg", ", did you mean debug?"}}) {
    ::setenv("STARLING_LOG", wanted, 1);
    const std::string refused = refusal<UsageError>([] { level_from_environment(); });
    ::unsetenv("STARLING_LOG");
    EXPECT_EQ(refused, "environment: STARLING_LOG='" + std::string(wanted) + "' is not allowed" + near +
                           ": debug, info or warning");
  }
}

}  // namespace
}  // namespace starling
