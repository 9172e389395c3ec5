// Failpoints: places in a worker's program at which the environment variable STARLING_FAIL makes it
// fail, for tests of what the others do. It names one or more, separated by commas:
//
//   phase:step:rank:action     such as backward:20:1:kill
//
//   phase    rendezvous        all workers meet; its step is 0
//            data, forward, backward, optimizer
//                              of a step, before each of them; backward: after it
//            exchange          before a wait for the neighbours' part of a block
//            test, checkpoint  before a test of the average model, and before a checkpoint is saved
//            send              a block goes to a neighbour
//            vote              a neighbour's block is there, the vote for it is not on its way
//            average           in an exact average, which the others wait for
//            checkpoint-write  a worker's file is written and not yet on the disk
//            checkpoint-rename, checkpoint-latest
//                              at the worker that commits it: before and after the rename
//            join              the state of a worker goes to one that joins, at both
//   step     a number, counted from 1; * each step; ~P a step with the probability P
//   rank     a number; * each
//   action   kill, stop        SIGKILL or SIGSTOP to the worker itself
//            exit              ends with exit code 3
//            throw             throws Error; not on the transport's thread: send, vote, average
//            sleep=SECONDS     at that place, once
//            nan               gradients become NaN; only for backward
//            jump=VALUE        one value of the parameters becomes this one; only for optimizer
//
// seed=N chooses the steps of ~P. A worker that was started again (STARLING_RESTARTS) has no
// failpoints, unless restart=any is named too. Each one fires once a step, and says so on stderr.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace starling {

class PhaseBoard;

// The name of a phase. A wrong one does not compile.
class FailPhase {
 public:
  static constexpr std::string_view kNames[] = {"rendezvous",
                                                "data",
                                                "forward",
                                                "backward",
                                                "optimizer",
                                                "exchange",
                                                "test",
                                                "checkpoint",
                                                "send",
                                                "vote",
                                                "average",
                                                "checkpoint-write",
                                                "checkpoint-rename",
                                                "checkpoint-latest",
                                                "join"};
  // NOLINTNEXTLINE(google-explicit-constructor): a call reads failpoint("forward")
  consteval FailPhase(const char* name) {
    while (kNames[index] != name) ++index;  // beyond the last one is no constant
  }
  std::size_t index = 0;
};

// For failpoint() alone.
extern constinit std::atomic<bool> failpoints_armed;
std::optional<double> reach_failpoint(std::size_t phase);

// Any thread. Fires what was armed for this phase. Returns the number that takes the place of right
// ones: NaN in all gradients, or the value to which one parameter jumps. One load if nothing is
// armed and no phases are shown.
inline std::optional<double> failpoint(FailPhase phase) {
  if (!failpoints_armed.load(std::memory_order_relaxed)) return std::nullopt;
  return reach_failpoint(phase.index);
}

// Arms this process, which is the worker `rank`. `value`: of STARLING_FAIL; empty: it is disarmed.
// `restarts`: how often the worker has been started before. Throws UsageError for a wrong value.
// Call it while no other thread is in failpoint().
void arm_failpoints(const std::string& value, int rank, int restarts);

// Marks the phases of this process on the board from now on; null: no more. Call it while no other
// thread is in failpoint().
void show_phases(std::unique_ptr<PhaseBoard> board);

// The step in which the following phases are. Optimizer::step() counts its calls by the second
// function, until the first one is called.
void set_failpoint_step(std::int64_t step);
void count_failpoint_step();

// While it lives, the phases of this thread are of this step: of a thread that does its work later.
class FailpointStep {
 public:
  explicit FailpointStep(std::int64_t step);
  ~FailpointStep();
  FailpointStep(const FailpointStep&) = delete;
  FailpointStep& operator=(const FailpointStep&) = delete;
};

}  // namespace starling
