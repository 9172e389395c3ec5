#include "starling/core/failpoint.h"

#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/refusal.h"

namespace starling {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Failpoints : public testing::Test {
 protected:
  ~Failpoints() override { arm_failpoints("", 0, 0); }
};

// The steps of 1 to `last` in which backward makes NaN.
std::vector<int> poisoned(int last) {
  std::vector<int> steps;
  for (int step = 1; step <= last; ++step) {
    set_failpoint_step(step);
    failpoint("forward");
    if (failpoint("backward")) steps.push_back(step);
    EXPECT_FALSE(failpoint("backward")) << "twice in a step";
  }
  return steps;
}

// The end of a child that gets to `phase`: its exit code, or minus the signal.
int end_at(FailPhase phase) {
  const pid_t child = fork();
  if (child == 0) {
    set_failpoint_step(7);
    std::freopen("/dev/null", "w", stderr);
    failpoint(phase);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, WUNTRACED);
  if (WIFSTOPPED(status)) {
    kill(child, SIGCONT);
    waitpid(child, nullptr, 0);
    return -WSTOPSIG(status);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST_F(Failpoints, FireInTheirPhaseStepAndRank) {
  EXPECT_THAT(poisoned(9), ElementsAre());
  arm_failpoints("backward:3:1:nan,backward:5:*:nan,backward:6:2:nan", 1, 0);
  EXPECT_THAT(poisoned(9), ElementsAre(3, 5));
  arm_failpoints("backward:3:1:nan", 2, 0);
  EXPECT_FALSE(failpoints_armed);
  arm_failpoints("backward:*:1:nan", 1, 0);
  EXPECT_THAT(poisoned(3), ElementsAre(1, 2, 3));
}

TEST_F(Failpoints, FireByChanceAsTheSeedSays) {
  arm_failpoints("backward:~0.3:*:nan", 1, 0);
  const std::vector<int> steps = poisoned(1000);
  EXPECT_NEAR(static_cast<double>(steps.size()), 300, 60);
  arm_failpoints("backward:~0.3:*:nan", 1, 0);
  EXPECT_EQ(poisoned(1000), steps);
  arm_failpoints("backward:~0.3:*:nan,seed=2", 1, 0);
  EXPECT_NE(poisoned(1000), steps);
  arm_failpoints("backward:~0.3:*:nan", 2, 0);
  EXPECT_NE(poisoned(1000), steps);
}

TEST_F(Failpoints, AreOffInALaterLifeUnlessWanted) {
  arm_failpoints("backward:3:1:nan", 1, 1);
  EXPECT_THAT(poisoned(9), ElementsAre());
  arm_failpoints("restart=any,backward:3:1:nan", 1, 1);
  EXPECT_THAT(poisoned(9), ElementsAre(3));
}

TEST_F(Failpoints, DoWhatTheySay) {
  for (const auto& [action, end] :
       {std::pair{"kill", -SIGKILL}, {"stop", -SIGSTOP}, {"exit", 3}, {"sleep=0.001", 0}}) {
    arm_failpoints(fmt::format("send:7:0:{}", action), 0, 0);
    EXPECT_EQ(end_at("send"), end) << action;
    EXPECT_EQ(end_at("vote"), 0) << action;
  }
  arm_failpoints("optimizer:7:0:throw", 0, 0);
  set_failpoint_step(7);
  EXPECT_EQ(refusal([] { failpoint("optimizer"); }), "failpoint optimizer:7:0:throw at step 7");
  failpoint("optimizer");
}

TEST_F(Failpoints, AJumpGivesItsValueOnceInTheStep) {
  arm_failpoints("optimizer:2:0:jump=-1e6", 0, 0);
  set_failpoint_step(1);
  EXPECT_EQ(failpoint("optimizer"), std::nullopt);
  set_failpoint_step(2);
  EXPECT_EQ(failpoint("backward"), std::nullopt);
  EXPECT_EQ(failpoint("optimizer"), -1e6);
  EXPECT_EQ(failpoint("optimizer"), std::nullopt);
}

TEST_F(Failpoints, StepsAreCountedUntilTheyAreTold) {
  arm_failpoints("backward:2:0:nan", 0, 0);
  count_failpoint_step();
  EXPECT_FALSE(failpoint("backward"));
  count_failpoint_step();
  EXPECT_TRUE(failpoint("backward"));
  set_failpoint_step(1);
  count_failpoint_step();
  EXPECT_FALSE(failpoint("backward"));
}

TEST_F(Failpoints, AWrongOneIsRefusedWithWhatIsAllowed) {
  const auto refused = [](const std::string& value) { return refusal([&] { arm_failpoints(value, 0, 0); }); };
  EXPECT_EQ(refused("optimzer:5:1:kill"),
            "environment: STARLING_FAIL: \"optimzer:5:1:kill\": unknown phase \"optimzer\", did you mean "
            "optimizer?; there are: rendezvous, data, forward, backward, optimizer, exchange, test, "
            "checkpoint, send, vote, average, checkpoint-write, checkpoint-rename, checkpoint-latest, join");
  EXPECT_EQ(refused("data:5:1:kil"),
            "environment: STARLING_FAIL: \"data:5:1:kil\": unknown action \"kil\", did you mean kill?; there "
            "are: kill, stop, exit, throw, sleep, nan, jump");
  for (const auto& [value, why] : std::vector<std::pair<std::string, std::string>>{
           {"data", "this is not phase:step:rank:action"},
           {"data:1:1:kill,", "\"\": this is not phase:step"},
           {"data:1:1:kill:2", "this is not phase:step:rank:action"},
           {"data:x:1:kill", "the step \"x\" is not a number"},
           {"data:-1:1:kill", "the step \"-1\" is not a number"},
           {"data:~2:1:kill", "the probability \"~2\" is not"},
           {"data:~nan:1:kill", "the probability \"~nan\" is not"},
           {"data:1:-1:kill", "the rank \"-1\" is not a number"},
           {"data:1:1:sleep", "sleep needs its time"},
           {"data:1:1:sleep=x", "is not a number of seconds"},
           {"data:1:1:sleep=inf", "is not a number of seconds"},
           {"data:1:1:kill=1", "only sleep and jump have a value"},
           {"optimizer:1:1:jump", "jump needs its value: jump=VALUE"},
           {"optimizer:1:1:jump=x", "the value is not a finite number"},
           {"optimizer:1:1:jump=inf", "the value is not a finite number"},
           {"data:1:1:nan", "nan is for the phase backward only"},
           {"backward:1:1:jump=1e6", "jump is for the phase optimizer only"},
           {"vote:1:1:throw", "throw is not for the phases average, send, vote"},
           {"seed=-1", "the seed is not a number"}}) {
    EXPECT_THAT(refused(value), HasSubstr(why)) << value;
    EXPECT_FALSE(failpoints_armed);
  }
}

}  // namespace
}  // namespace starling
