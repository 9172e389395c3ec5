#include "starling/core/phases.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "starling/core/failpoint.h"
#include "starling/core/host.h"
#include "tests/eventually.h"
#include "tests/folder.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using testing::HasSubstr;
using Process = WorkerPhases::Process;

constexpr auto kTraining = PhaseThread::training;

// A process that does `work` with the board of worker 3, and then waits to be killed.
class Worker {
 public:
  template <class F>
  Worker(const std::string& folder, F&& work) : pid_(fork()) {
    if (pid_ != 0) return;
    show_phases(std::make_unique<PhaseBoard>(folder, PhaseOwner{.rank = 3, .workers = 4, .restarts = 1}));
    work();
    while (true) pause();
  }
  ~Worker() { end(); }
  void end() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

// Waits until the text of its phases is this.
WorkerPhases read_until(const std::string& folder, const std::string& text) {
  std::optional<WorkerPhases> read;
  EXPECT_TRUE(eventually([&] {
    read = read_phases(folder, 3);
    return read && read->text() == text;
  })) << text;
  return read.value_or(WorkerPhases{});
}

TEST(Phases, TellWhereAWorkerIsAndWhetherItLives) {
  const Folder folder;
  EXPECT_FALSE(read_phases(folder.path, 3));
  const double before = unix_seconds();
  Worker worker(folder / "phases", [] {
    failpoint("rendezvous");
    set_failpoint_step(6);
    failpoint("vote");
    set_failpoint_step(7);
    failpoint("data");
    {
      const FailpointStep of(5);
      failpoint("checkpoint-write");
    }
    failpoint("forward");
  });
  const WorkerPhases read =
      read_until(folder / "phases",
                 "forward of step 7, transport: vote of step 6, checkpoint: checkpoint-write of step 5");
  EXPECT_EQ(read.owner.workers, 4);
  EXPECT_EQ(read.owner.restarts, 1);
  EXPECT_EQ(read.pid, worker.pid());
  EXPECT_EQ(read.process, Process::running);
  EXPECT_GE(read.begin, before);
  ASSERT_TRUE(read.of(kTraining));
  EXPECT_GE(read.of(kTraining)->since, read.begin);
  EXPECT_LE(read.of(kTraining)->since, unix_seconds());
  kill(worker.pid(), SIGSTOP);
  EXPECT_EQ(read_phases(folder / "phases", 3)->process, Process::running);
  worker.end();
  const auto after = read_phases(folder / "phases", 3);
  EXPECT_EQ(after->process, Process::gone);
  EXPECT_EQ(after->text(), read.text());
  const Worker again(folder / "phases", [] {});
  EXPECT_EQ(read_until(folder / "phases", "").process, Process::running);
}

TEST(Phases, AReaderSeesNoPhaseThatWasNotThere) {
  const Folder folder;
  const Worker worker(folder.path, [] {
    for (std::int64_t step = 1;; ++step) {
      set_failpoint_step(step);
      step % 2 == 0 ? failpoint("forward") : failpoint("backward");
    }
  });
  std::int64_t last = 0;
  for (int reads = 0; reads < 2000;) {
    const auto read = read_phases(folder.path, 3);
    if (!read || !read->of(kTraining)) continue;
    const WorkerPhases::Phase& phase = *read->of(kTraining);
    ASSERT_EQ(phase.name, phase.step % 2 == 0 ? "forward" : "backward");
    ASSERT_GE(phase.step, last);
    last = phase.step;
    ++reads;
  }
}

TEST(Phases, ADamagedFileIsNone) {
  const Folder folder;
  const std::string path = folder / "worker-3";
  {
    const Worker worker(folder.path, [] {
      set_failpoint_step(1);
      failpoint("forward");
    });
    read_until(folder.path, "forward of step 1");
  }
  const std::string whole = slurp(path);
  ASSERT_TRUE(read_phases(folder.path, 3));
  for (std::size_t length = 0; length < whole.size(); length += 7) {
    spill(path, whole.substr(0, length));
    EXPECT_FALSE(read_phases(folder.path, 3)) << length;
  }
  for (std::size_t at = 0; at < whole.size(); ++at) {  // must not crash, whatever it says
    for (const char c : {'\0', '\x7f', '\xff'}) {
      std::string damaged = whole;
      damaged[at] = c;
      spill(path, damaged);
      const auto read = read_phases(folder.path, 3);
      EXPECT_LT(read ? read->text().size() : 0, 200U);
    }
  }
  spill(folder / "worker-2", whole);
  EXPECT_FALSE(read_phases(folder.path, 2)) << "it is of another rank";
}

TEST(Phases, ABoardThatCannotBeWrittenIsRefused) {
  const Folder folder;
  spill(folder / "file", "");
  EXPECT_THAT(refusal([&] { PhaseBoard(folder / "file/phases", {}); }),
              HasSubstr("/file/phases: cannot be made"));
  const FullDisk full(50);
  EXPECT_THAT(refusal([&] { PhaseBoard(folder.path, {}); }), HasSubstr("/worker-0: cannot be written"));
}

}  // namespace
}  // namespace starling
