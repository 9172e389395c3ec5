#include "starling/core/process.h"

#include <gtest/gtest.h>

namespace starling {
namespace {

TEST(Process, AStatusBecomesAnExitCode) {
  struct Case {
    int status, code;
    bool told;
  };
  for (const Case& c : {Case{W_EXITCODE(0, 0), 0, false},
                        {W_EXITCODE(2, 0), 2, false},
                        {W_EXITCODE(0, SIGKILL), 137, false},
                        {W_EXITCODE(0, SIGTERM), 143, true},
                        {W_EXITCODE(0, SIGINT), 130, true},
                        {W_EXITCODE(143, 0), 143, true},  // it ended by itself, after the signal
                        {W_EXITCODE(0, SIGSEGV | WCOREFLAG), 139, false}}) {
    EXPECT_EQ(exit_code_of(c.status), c.code);
    EXPECT_EQ(was_told_to_end(exit_code_of(c.status)), c.told) << c.code;
  }
}

}  // namespace
}  // namespace starling
