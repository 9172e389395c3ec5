// drill() with workers that only log steps. This program is its own worker: with the variable ACT,
// main() below plays it, and does not test.
#include "starling/train/drill.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include "starling/core/failpoint.h"
#include "starling/core/phases.h"
#include "tests/folder.h"

namespace starling {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr auto kStep = 10ms;

volatile std::sig_atomic_t woken = 0;

void append(const std::string& path, const std::string& text) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (write(file, text.data(), text.size()) != static_cast<ssize_t>(text.size())) std::exit(2);
  close(file);
}

// The steps go with the clock, so that a worker that comes back is where the others are. A process
// leaves a mark once it has logged a few steps, and when it is woken. All end once there are MARKS
// marks, however slow the machine is. ACT: run; hang after five lines; or fail after five lines,
// once, as worker 1.
int act() {
  const int rank = std::atoi(std::getenv("RANK")), life = std::atoi(std::getenv("STARLING_RESTARTS"));
  const std::string folder = std::getenv("FOLDER"), act = std::getenv("ACT");
  const auto marks = static_cast<std::uintmax_t>(std::atoi(std::getenv("MARKS")));
  show_phases(std::make_unique<PhaseBoard>(folder + "/phases", PhaseOwner{rank, 3, life}));
  std::signal(SIGCONT, [](int) { woken = 1; });
  const auto begin = std::filesystem::last_write_time(folder + "/begin");
  fmt::print("worker {} lives\n", rank);
  std::fflush(stdout);  // a process that is killed would keep the line
  for (int logged = 0; std::filesystem::file_size(folder + "/marks") < marks;
       std::this_thread::sleep_for(kStep)) {
    const auto step = (decltype(begin)::clock::now() - begin) / kStep;
    set_failpoint_step(step);
    failpoint("forward");
    if (act == "hang" && logged == 5) continue;
    if (act == "fail" && rank == 1 && life == 0 && logged == 5) return 1;
    append(folder + "/metrics.jsonl", fmt::format("{{\"rank\":{},\"step\":{}}}\n", rank, step));
    if (++logged == 6) append(folder + "/marks", "x");
    if (std::exchange(woken, 0) == 1) append(folder + "/marks", "x");
  }
  return 0;
}

struct Drilled {
  DrillReport report;
  std::vector<std::string> said;
  std::string log;
};

Drilled drilled(const std::string& act, int marks, const std::function<void(DrillOptions&)>& change) {
  const Folder folder;
  setenv("ACT", act.c_str(), 1);
  setenv("MARKS", fmt::format("{}", marks).c_str(), 1);
  setenv("FOLDER", folder.path.c_str(), 1);
  spill(folder / "begin", "");
  spill(folder / "marks", "");
  spill(folder / "metrics.jsonl", "{\"rank\":1,\"step\":77777}\n");  // of an earlier run
  Drilled done;
  DrillOptions options{.workers = 3, .arguments = {}, .out = folder.path};
  options.kill_every = 100ms;
  options.lasts = 3600s;
  options.hangs = 60s;
  options.seed = 1;
  options.say = [&](const std::string& text) { done.said.push_back(text); };
  change(options);
  done.report = drill(options);
  done.log = slurp(folder / "drill.log");
  unsetenv("ACT");
  return done;
}

// The others may finish between a kill and the end of the killed process.
bool was_there_or_has_finished(const DrillWorker& worker, double second) {
  return std::ranges::any_of(worker.lives, [&](const DrillLife& life) {
    const bool stopped = std::ranges::any_of(
        life.stops, [&](const DrillStop& stop) { return stop.begin <= second && second < stop.end; });
    const bool ended = life.killed && life.end.value_or(1e9) <= second;
    return life.joined && *life.joined <= second && !ended && !stopped;
  });
}

TEST(Drill, KillsAndRestartsWorkersUntilTheRunHasFinishedAndLeavesOne) {
  const auto [report, said, log] = drilled("run", 7, [](DrillOptions&) {});
  EXPECT_EQ(report.exit_code, 0);
  EXPECT_FALSE(report.hung);
  EXPECT_THAT(said, ElementsAre());
  EXPECT_EQ(report.deaths, 0);
  EXPECT_GT(report.kills, 3);
  EXPECT_GE(report.restarts(), report.kills - 2);  // a worker killed last may be left out
  EXPECT_LE(report.restarts(), report.kills);
  EXPECT_GT(report.rejoins.size(), 2U);
  EXPECT_TRUE(std::ranges::all_of(report.rejoins, [](double seconds) { return seconds > 0; }));
  int killed = 0;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const DrillWorker& worker = report.workers[rank];
    EXPECT_GT(worker.memory_begin, 0U);
    EXPECT_GT(worker.memory_end, 0U);
    EXPECT_NE(worker.step, 77777);
    EXPECT_EQ(worker.last_phase, "");
    for (const DrillLife& life : worker.lives) {
      ASSERT_TRUE(life.end);
      if (!life.killed) continue;
      ++killed;
      bool another = false;
      for (std::size_t other = 0; other < 3; ++other)
        another |= other != rank && was_there_or_has_finished(report.workers[other], *life.end);
      EXPECT_TRUE(another) << "worker " << rank << " was the last one, at " << *life.end;
    }
  }
  EXPECT_EQ(killed, report.kills);
  EXPECT_THAT(log, HasSubstr("worker 2 lives\n"));
}

TEST(Drill, KillsNobodyAfterItsTime) {
  const auto [report, said, log] = drilled("run", 3, [](DrillOptions& options) { options.lasts = 0s; });
  EXPECT_EQ(report.exit_code, 0);
  EXPECT_EQ(report.kills + report.stops + report.restarts(), 0);
}

TEST(Drill, StopsWorkersAndWakesThem) {
  const auto [report, said, log] = drilled("run", 5, [](DrillOptions& options) { options.stop_share = 1; });
  EXPECT_EQ(report.exit_code, 0);
  EXPECT_EQ(report.kills, 0);
  EXPECT_GT(report.stops, 1);
  EXPECT_EQ(report.restarts(), 0);
  for (const DrillWorker& worker : report.workers) {
    for (const DrillStop& stop : worker.lives.front().stops) EXPECT_GE(stop.end, stop.begin);
  }
}

TEST(Drill, AHangIsSeenAndSaysWhereTheWorkersAre) {
  const auto [report, said, log] = drilled("hang", 1, [](DrillOptions& options) {
    options.lasts = 0s;
    options.hangs = 1s;
  });
  EXPECT_TRUE(report.hung);
  EXPECT_EQ(report.exit_code, 128 + SIGTERM);
  EXPECT_EQ(report.deaths, 0);
  for (const DrillWorker& worker : report.workers)
    EXPECT_THAT(worker.last_phase, HasSubstr("forward of step "));
}

TEST(Drill, AWorkerThatFailsByItselfIsNamed) {
  const auto [report, said, log] = drilled("fail", 3, [](DrillOptions& options) { options.lasts = 0s; });
  EXPECT_EQ(report.exit_code, 0);
  EXPECT_EQ(report.deaths, 1);
  EXPECT_EQ(report.restarts(), 1);
  EXPECT_THAT(said, ElementsAre("worker 1 failed by itself with exit code 1"));
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  if (std::getenv("ACT") != nullptr && std::getenv("RANK") != nullptr) return starling::act();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
