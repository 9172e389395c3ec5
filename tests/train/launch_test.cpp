// launch_workers() with workers that do no more than live and die. This program is its own worker:
// with the variable ACTS, main() below plays the act of its rank and life, and does not test.
#include "starling/train/launch.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "starling/core/process.h"
#include "starling/transport/c10d/launcher.h"
#include "starling/world/world.h"
#include "tests/folder.h"

namespace starling {
namespace {

using namespace std::chrono_literals;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;

// Acts of a worker, one for each of its lives: k(ill), f(ail), u(sage error), t(erminate), e(nd),
// w(ait for the file "go", then end), c(ome too late: wait for it, then a usage error), s(ave what
// the store says of worker 1 after that), d(o it once the store says anything), l(ive until that is
// saved), z (stop, then end). Beyond the last one it ends.
int act() {
  const int rank = std::atoi(std::getenv("RANK")), life = std::atoi(std::getenv("STARLING_RESTARTS"));
  const std::string folder = std::getenv("FOLDER"), acts = std::getenv("ACTS");
  std::size_t at = 0;
  for (int r = 0; r < rank; ++r) at = acts.find(' ', at) + 1;
  const std::string mine = acts.substr(at, acts.find(' ', at) - at);
  const auto wait_for = [&](const char* file) {
    while (!std::filesystem::exists(folder + file)) std::this_thread::sleep_for(2ms);
  };
  switch (static_cast<std::size_t>(life) < mine.size() ? mine[static_cast<std::size_t>(life)] : 'e') {
    case 'k':
      return raise(SIGKILL);
    case 't':
      return raise(SIGTERM);
    case 'f':
      return 1;
    case 'u':
      return 2;
    case 'w':
      wait_for("/go");
      return 0;
    case 'c':
      wait_for("/go");
      return 2;
    case 's':
      wait_for("/go");
      spill(folder + "/fate", World::from_environment().fate(1));
      return 0;
    case 'd': {
      const World world = World::from_environment();
      while (world.fate(1).empty()) std::this_thread::sleep_for(2ms);
      spill(folder + "/fate", world.fate(1));
      return 0;
    }
    case 'l':
      wait_for("/fate");
      return 0;
    case 'z':
      raise(SIGSTOP);
      return 0;
    default:
      return 0;
  }
}

struct Launched {
  int code = 0;
  std::vector<std::string> said;
  std::map<int, std::vector<int>> started;  // rank -> restarts
  std::vector<std::pair<int, int>> ended;   // rank, exit code or -signal
  std::string fate;
};

// Runs the acts of all workers, "ACTS-OF-0 ACTS-OF-1 ...". Those that wait go on once the others
// have ended so often.
Launched launch(const std::string& acts, int most, std::size_t deaths, Duration pause = 1ms,
                Duration long_life = 30s) {
  const Folder folder;
  setenv("ACTS", acts.c_str(), 1);
  setenv("FOLDER", folder.path.c_str(), 1);
  Launched seen;
  const int workers = 1 + static_cast<int>(std::ranges::count(acts, ' '));
  LaunchOptions options{
      .restarts = {.most = most, .first_pause = pause, .longest_pause = 4 * pause, .long_life = long_life}};
  const auto go_on = [&] {
    if (seen.ended.size() >= deaths) spill(folder / "go", "");
  };
  options.watch.started = [&](int rank, int restarts, pid_t process) {
    EXPECT_EQ(kill(process, 0), 0);
    seen.started[rank].push_back(restarts);
  };
  options.watch.ended = [&](int rank, int status) {
    seen.ended.emplace_back(rank, WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    go_on();
  };
  go_on();
  seen.code =
      launch_workers(workers, {}, [&](const std::string& text) { seen.said.push_back(text); }, options);
  seen.fate = slurp(folder / "fate");
  unsetenv("ACTS");
  return seen;
}

TEST(Launch, WithoutRestartsADeadWorkerStaysDeadAndTheStoreSaysSo) {
  const Launched seen = launch("s k", 0, 1);
  EXPECT_EQ(seen.code, 0);
  EXPECT_THAT(seen.said, ElementsAre("worker 1 was killed by signal 9"));
  EXPECT_THAT(seen.started.at(1), ElementsAre(0));
  EXPECT_EQ(seen.fate, "was killed by signal 9");
}

TEST(Launch, AWorkerThatDiesOrFailsComesBackAndTheStoreDoesNotCallItDead) {
  const Launched seen = launch("s kfl", 3, 2);
  EXPECT_EQ(seen.code, 0);
  EXPECT_THAT(seen.said, ElementsAre("worker 1 was killed by signal 9; restarted (1 of 3)",
                                     "worker 1 failed with exit code 1; restarted (2 of 3)"));
  EXPECT_THAT(seen.started.at(1), ElementsAre(0, 1, 2));
  EXPECT_EQ(seen.ended[0], (std::pair{1, -SIGKILL}));
  EXPECT_EQ(seen.ended[1], (std::pair{1, 1}));
  EXPECT_EQ(seen.fate, "");
}

TEST(Launch, AWorkerIsGivenUpAfterTheMostRestarts) {
  const Launched seen = launch("s kkk", 2, 3);
  EXPECT_EQ(seen.code, 0);  // the other one has finished
  EXPECT_THAT(seen.said,
              ElementsAre(HasSubstr("(1 of 2)"), HasSubstr("(2 of 2)"),
                          "worker 1 was killed by signal 9; it has been restarted 2 times, the most"));
  EXPECT_EQ(seen.fate, "was killed by signal 9");
  EXPECT_EQ(launch("w fff", 2, 3).code, 1);  // an error that stays is one
}

TEST(Launch, AnErrorIsForgivenIfTheWorkerComesBackAndFinishes) { EXPECT_EQ(launch("w ffe", 2, 3).code, 0); }

TEST(Launch, WrongInputIsNotTriedAgain) {
  const Launched seen = launch("w u", 3, 1);
  EXPECT_EQ(seen.code, 2);
  EXPECT_THAT(seen.said, ElementsAre("worker 1 failed with exit code 2; it is not restarted"));
  EXPECT_THAT(seen.started.at(1), ElementsAre(0));
}

TEST(Launch, AWorkerThatComesBackWhenTheOthersHaveEndedIsNoFailure) {
  const Launched seen = launch("w ku", 3, 2);
  EXPECT_EQ(seen.code, 0);
  EXPECT_EQ(seen.said.back(), "worker 1 failed with exit code 2; it is not restarted");
  EXPECT_EQ(launch("e c", 3, 1).code, 0) << "nor if it was away in between";
}

TEST(Launch, AStoppedWorkerIsContinuedWhenAnotherHasFinished) {
  const Launched seen = launch("e z", 0, 0);
  EXPECT_EQ(seen.code, 0);
  EXPECT_THAT(seen.said, ElementsAre("worker 1 is stopped, and another has finished: it is continued"));
}

TEST(Launch, AWorkerThatWasToldToEndLeavesAndDoesNotComeBack) {
  const Launched seen = launch("s t", 3, 1);
  EXPECT_EQ(seen.code, 0);
  EXPECT_THAT(seen.said, ElementsAre("worker 1 was told to end by signal 15"));
  EXPECT_THAT(seen.started.at(1), ElementsAre(0));
  EXPECT_EQ(seen.fate, "was killed by signal 15");
  EXPECT_EQ(launch("t t", 3, 2).code, 128 + SIGTERM) << "nobody has finished";
}

TEST(Launch, NoneComesBackAfterAnotherHasFinished) {
  const Launched seen = launch("e wk w", 3, 1);  // 1 dies in its second life, which never comes
  EXPECT_EQ(seen.code, 0);
  const Launched late = launch("e k w", 3, 2, 3600s);  // 1 waits for its restart when 0 has finished
  EXPECT_EQ(late.code, 0);
  EXPECT_THAT(late.started.at(1), ElementsAre(0));
  EXPECT_THAT(launch("e k d", 3, 2, 3600s).fate,
              AnyOf("was killed by signal 9", "ended, and is not started again"))
      << "nobody waits for it";
}

TEST(Launch, NoneComesBackWhenNoneIsLeft) {
  const Launched seen = launch("k k", 3, 9, 3600s);
  EXPECT_EQ(seen.code, 1);
  EXPECT_EQ(seen.started.size(), 2U);
  EXPECT_EQ(seen.said.size(), 3U);
  EXPECT_EQ(seen.said.back(), "no worker is left that another one could join");
}

TEST(Launch, TheWaitBeforeARestartDoubles) {
  const Launched seen = launch("w kkkkke", 5, 6, 60ms);
  EXPECT_EQ(seen.code, 0);
  EXPECT_THAT(seen.said, ElementsAre(HasSubstr("restarted in 0.1 s (1"), HasSubstr("restarted in 0.1 s (2"),
                                     HasSubstr("restarted in 0.2 s (3"), HasSubstr("restarted in 0.2 s (4"),
                                     HasSubstr("restarted in 0.2 s (5")));
}

TEST(Launch, ALongLifeIsFollowedByARestartAtOnce) {
  const Launched seen = launch("w kke", 3, 3, 3600s, 0s);
  EXPECT_EQ(seen.code, 0);
  EXPECT_THAT(seen.said, ElementsAre(HasSubstr("; restarted (1 of 3)"), HasSubstr("; restarted (2 of 3)")));
}

// A signal that a worker has ended, which another thread has taken, never comes.
TEST(Launch, TheWaitForASignalEndsByItself) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  EXPECT_EQ(wait_for_signal(signals, std::nullopt), 0);
}

TEST(Launch, LookIsCalledWhenItAskedForIt) {
  const Folder folder;
  setenv("ACTS", "w", 1);
  setenv("FOLDER", folder.path.c_str(), 1);
  int looks = 0;
  LaunchOptions options;
  options.watch.look = [&]() -> std::optional<Duration> {
    if (++looks == 5) spill(folder / "go", "");
    return 1ms;
  };
  EXPECT_EQ(launch_workers(1, {}, [](const std::string&) {}, options), 0);
  EXPECT_GE(looks, 5);
  unsetenv("ACTS");
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  if (std::getenv("ACTS") != nullptr && std::getenv("RANK") != nullptr) return starling::act();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
