#include "starling/train/run_status.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "starling/core/failpoint.h"
#include "starling/train/metrics.h"
#include "tests/eventually.h"
#include "tests/folder.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Optional;
using Process = WorkerPhases::Process;
using State = RunStatus::State;

// A worker in a process of its own, which stays in `phase` of step 5 until it is ended.
class Worker {
 public:
  Worker(const std::string& out, int rank, int workers, const std::function<void()>& phase) : pid_(fork()) {
    if (pid_ == 0) {
      show_phases(
          std::make_unique<PhaseBoard>(out + "/phases", PhaseOwner{.rank = rank, .workers = workers}));
      set_failpoint_step(5);
      phase();
      while (true) pause();
    }
    EXPECT_TRUE(eventually([&] {
      const auto read = read_phases(out + "/phases", rank);
      return read && read->pid == pid_ && !read->text().empty();  // not an earlier worker's
    }));
  }
  ~Worker() { end(); }
  Worker(Worker&& other) noexcept : pid_(std::exchange(other.pid_, 0)) {}
  void end() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, 0), nullptr, 0);
  }

 private:
  pid_t pid_;
};

void in_data() { failpoint("data"); }
void in_forward() { failpoint("forward"); }
void in_exchange() { failpoint("exchange"); }
void in_test() { failpoint("test"); }

std::vector<int> late_in(const RunStatus& run) {
  std::vector<int> late;
  for (const WorkerStatus& worker : run.workers) {
    if (worker.late) late.push_back(worker.rank);
  }
  return late;
}

class RunStatusTest : public testing::Test {
 protected:
  // Steps of half a second, `steps` of them.
  void log(int rank, int steps, double step_seconds = 0.5) {
    Metrics metrics(folder_.path);
    for (int step = 1; step <= steps; ++step)
      metrics.write({.rank = rank,
                     .step = step,
                     .epoch = step / 10.0,
                     .seconds = step * step_seconds,
                     .loss = 1.0 / step,
                     .waiting_share = 0.25,
                     .bytes_sent = static_cast<std::uint64_t>(step) * 100,
                     .round = static_cast<std::uint64_t>(step) + 1,
                     .membership = 3,
                     .joins = static_cast<std::uint64_t>(rank),
                     .blocks_aborted = 7,
                     .blocks_jumped = 2});
  }
  // So many seconds after the first of the workers came to its phase.
  RunStatus read(double later = 0) const {
    double first = unix_seconds();
    for (int rank = 0; rank < 3; ++rank) {
      const auto phases = read_phases(folder_ / "phases", rank);
      if (phases && phases->of(PhaseThread::training))
        first = std::min(first, phases->of(PhaseThread::training)->since);
    }
    return read_run_status(folder_.path, first + later);
  }
  std::vector<Worker> workers(const std::vector<std::function<void()>>& phases) const {
    std::vector<Worker> all;
    for (const auto& phase : phases)
      all.emplace_back(folder_.path, static_cast<int>(all.size()), static_cast<int>(phases.size()), phase);
    return all;
  }

  const Folder folder_;
};

TEST_F(RunStatusTest, ReadsWhatTrainWrites) {
  spill(folder_ / "recipe.toml", "[mixing]\nscheme = \"cta\"\ntopology = \"auto\"\n");
  Metrics(folder_.path).write_chosen("ring", "so");
  log(0, 30);
  log(1, 20, 1);
  Metrics(folder_.path)
      .write_test({.step = 10,
                   .seconds = 5,
                   .test_loss = 0.5,
                   .score_name = "bleu",
                   .score = 27,
                   .consensus_distance = 0.125});
  const std::vector<Worker> alive = workers({in_forward, in_exchange});
  const RunStatus run = read();
  EXPECT_EQ(run.state, State::running);
  EXPECT_EQ(run.scheme, "cta");
  EXPECT_EQ(run.topology, "ring");
  EXPECT_THAT(run.step, Optional(20));
  ASSERT_EQ(run.workers.size(), 2U);
  const WorkerStatus& first = run.workers[0];
  EXPECT_EQ(first.process(), Process::running);
  EXPECT_EQ(first.phase()->name, "forward");
  EXPECT_EQ(first.phase()->step, 5);
  EXPECT_THAT(first.step, Optional(30));
  EXPECT_THAT(first.epoch, Optional(3.0));
  EXPECT_THAT(first.loss, Optional(1.0 / 30));
  EXPECT_THAT(first.waiting_share, Optional(0.25));
  EXPECT_THAT(first.bytes_sent, Optional(3000));
  EXPECT_THAT(first.blocks_aborted, Optional(7));
  EXPECT_THAT(first.blocks_jumped, Optional(2));
  EXPECT_THAT(first.joins, Optional(0));
  EXPECT_THAT(run.workers[1].joins, Optional(1));
  EXPECT_THAT(run.round, Optional(21));
  EXPECT_THAT(run.membership, Optional(3));
  EXPECT_THAT(first.step_seconds, Optional(testing::DoubleNear(0.5, 1e-9)));
  EXPECT_THAT(run.workers[1].step_seconds, Optional(testing::DoubleNear(1, 1e-9)));
  EXPECT_EQ(run.workers[1].phase()->name, "exchange");
  ASSERT_TRUE(run.test);
  EXPECT_EQ(run.test->score_name, "bleu");
  EXPECT_EQ(run.test->step, 10);
  EXPECT_THAT(run.test->score, Optional(27.0));
  EXPECT_THAT(run.test->loss, Optional(0.5));
  EXPECT_THAT(run.test->consensus_distance, Optional(0.125));
}

TEST_F(RunStatusTest, TheLatestChoiceOfATopologyHolds) {
  spill(folder_ / "recipe.toml", "[mixing]\ntopology = \"auto\"\n");
  for (const char* choice : {"ring", "complete"}) {
    Metrics(folder_.path).write_chosen(choice, "so");
    log(0, 2);
    EXPECT_EQ(read().topology, choice);
  }
}

TEST_F(RunStatusTest, AWorkerIsLateInAPhaseOfAStepAndTheOthersWaitForIt) {
  struct Case {
    std::vector<std::function<void()>> phases;
    double later;
    std::vector<int> late;
  };
  for (const auto& [phases, later, late] :
       {Case{{in_forward, in_exchange, in_exchange}, 0, {}},
        Case{{in_forward, in_exchange, in_exchange}, 1000, {0}},
        Case{{in_forward, in_exchange, in_data}, 1000, {0, 2}},
        Case{{in_exchange, in_exchange}, 1000, {0, 1}}, Case{{in_test, in_test}, 1000, {}}}) {
    std::filesystem::remove_all(folder_ / "phases");
    const std::vector<Worker> alive = workers(phases);
    log(0, 3, 30);  // late after 90 s
    EXPECT_EQ(late_in(read(later)), late) << phases.size() << " workers, " << later << " s later";
  }
}

TEST_F(RunStatusTest, LateIsMeasuredByTheMedianStepOrAMinute) {
  const std::vector<Worker> alive = workers({in_data, in_forward, in_forward});
  EXPECT_THAT(late_in(read(50)), ElementsAre());
  EXPECT_THAT(late_in(read(1000)), ElementsAre(0, 1, 2));
  log(0, 3, 100);
  log(1, 3, 500);
  log(2, 3, 500);
  EXPECT_THAT(late_in(read(1000)), ElementsAre());
  EXPECT_THAT(late_in(read(2000)), ElementsAre(0, 1, 2));
}

TEST_F(RunStatusTest, ADeadWorkerIsGoneAndNotLate) {
  std::vector<Worker> alive = workers({in_forward, in_exchange});
  alive[0].end();
  RunStatus run = read(1000);
  EXPECT_EQ(run.state, State::running);
  EXPECT_EQ(run.workers[0].process(), Process::gone);
  EXPECT_EQ(run.workers[1].process(), Process::running);
  EXPECT_THAT(late_in(run), ElementsAre());
  alive[1].end();
  EXPECT_EQ(read().state, State::ended);
  spill(folder_ / "summary.json", "{}");
  EXPECT_EQ(read().state, State::finished);
}

TEST_F(RunStatusTest, ASummaryFromBeforeTheWorkersIsOfAnEarlierRun) {
  const std::string summary = folder_ / "summary.json";
  std::vector<Worker> alive = workers({in_data, in_forward});
  spill(summary, "{}");
  EXPECT_EQ(read().state, State::finished);
  std::filesystem::last_write_time(summary,
                                   std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  EXPECT_EQ(read().state, State::running);
  alive.clear();  // it has been refused
  EXPECT_EQ(read().state, State::finished);
}

TEST_F(RunStatusTest, ARunOfFewerWorkersForgetsTheOthers) {
  {
    const std::vector<Worker> before = workers({in_data, in_data, in_data});
  }
  const std::vector<Worker> alive = workers({in_forward, in_forward});
  EXPECT_EQ(read().workers.size(), 2U);
}

TEST_F(RunStatusTest, WithoutPhasesTheLinesTell) {
  log(2, 4);
  const RunStatus run = read();
  EXPECT_EQ(run.state, State::unknown);
  ASSERT_EQ(run.workers.size(), 1U);
  EXPECT_EQ(run.workers[0].rank, 2);
  EXPECT_EQ(run.workers[0].process(), Process::unknown);
  EXPECT_EQ(run.workers[0].phase(), nullptr);
  EXPECT_FALSE(run.test);
}

TEST_F(RunStatusTest, DamagedLinesAndFilesAreLeftOut) {
  log(0, 4);
  const std::string good = slurp(folder_ / "metrics.jsonl");
  const std::string whole = R"({"rank": 0, "step": 9, "loss": 7})";
  for (const std::string& bad :
       {std::string("no JSON"), std::string("{\"rank\": 0, \"step\": 9"), std::string("[1, 2]"),
        std::string("\xff\n\n{}"), std::string(R"({"rank": -1, "step": 9})"),
        std::string(R"({"rank": 1e9, "step": 9})"), std::string(R"({"rank": 0.5, "step": 9})"),
        std::string(R"({"rank": 0, "step": -9})"), std::string(R"({"rank": 0, "step": "9"})"),
        std::string(5000, '['), whole.substr(0, 20)}) {
    spill(folder_ / "metrics.jsonl", good + bad + "\n");
    const RunStatus run = read();
    EXPECT_EQ(run.workers.size(), 1U) << bad;
    EXPECT_THAT(run.workers[0].step, Optional(4)) << bad;
    spill(folder_ / "metrics.jsonl", good + bad + "\n" + whole + "\n" + whole.substr(0, 30));
    EXPECT_THAT(read().workers[0].step, Optional(9)) << bad;
  }
  for (const char* file : {"recipe.toml", "tests.jsonl", "phases"}) spill(folder_ / file, "\xff{[");
  EXPECT_EQ(read().scheme, "");
}

TEST_F(RunStatusTest, OfALongFileTheEndIsRead) {
  log(0, 2);
  const std::string line = slurp(folder_ / "metrics.jsonl");
  std::string many;
  while (many.size() < 3 << 20)
    many += R"({"rank": 1, "step": 1})"
            "\n";
  spill(folder_ / "metrics.jsonl", many + line);
  const RunStatus run = read();
  EXPECT_THAT(run.workers.at(0).step, Optional(2));
  spill(folder_ / "metrics.jsonl", line + std::string(3 << 20, 'x'));
  EXPECT_THAT(refusal<UsageError>([&] { read(); }), HasSubstr("holds no run"));
}

TEST_F(RunStatusTest, WhatIsNoRunIsRefused) {
  const auto refused = [](const std::string& folder) {
    return refusal<UsageError>([&] { read_run_status(folder); });
  };
  EXPECT_EQ(refused(folder_ / "none"), fmt::format("\"{}/none\": is no folder of a run", folder_.path));
  EXPECT_EQ(
      refused(folder_.path),
      fmt::format("\"{}\": holds no run of `starling train`: neither phases/ nor lines of metrics.jsonl",
                  folder_.path));
}

}  // namespace
}  // namespace starling
