// The place at which a worker is: its last phases (failpoint.h), in a small file that another
// process reads at any moment, without a lock. The file outlives the worker.
//
// A worker of `starling train` has RUN/phases/worker-R. The file is for processes on machines of
// the same kind: its numbers are as in memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "starling/core/descriptor.h"

namespace starling {

// The threads of a worker that reach phases. `writer`: the one that writes a checkpoint.
enum class PhaseThread { training, transport, writer };
constexpr std::size_t kPhaseThreads = 3;

// The worker that a file of phases is of.
struct PhaseOwner {
  int rank = 0;
  int workers = 1;  // at the start
  int restarts = 0;
};

class PhaseBoard {
 public:
  // Makes folder/worker-R, or takes over the file of an earlier life. Throws Error, also if the
  // disk is full: later marks need no more of it. A lock on the file says that the process lives.
  // The lock belongs to the process, which must not open the file elsewhere.
  PhaseBoard(const std::string& folder, const PhaseOwner& owner);
  ~PhaseBoard();
  PhaseBoard(const PhaseBoard&) = delete;
  PhaseBoard& operator=(const PhaseBoard&) = delete;

  // `phase`: an index of FailPhase::kNames. One thread of each kind at a time.
  void mark(PhaseThread thread, std::size_t phase, std::int64_t step);

  struct Sheet;  // the content of the file

 private:
  Descriptor file_;
  Sheet* sheet_ = nullptr;
};

// The content of a file of phases.
struct WorkerPhases {
  struct Phase {
    std::string name;
    std::int64_t step = 0;
    double since = 0;  // of the worker's system clock, in seconds since 1970
  };
  // unknown: on another host, or on a file system without locks.
  enum class Process { unknown, running, gone };

  PhaseOwner owner;
  std::string host;
  std::int64_t pid = 0;
  double begin = 0;  // of the process's board, as Phase::since
  Process process = Process::unknown;
  std::array<std::optional<Phase>, kPhaseThreads> phases;  // of each PhaseThread

  const std::optional<Phase>& of(PhaseThread thread) const {
    return phases[static_cast<std::size_t>(thread)];
  }
  // "forward of step 7, transport: vote of step 6"; empty if no phase was reached.
  std::string text() const;
};

// Nothing if the file is missing, or is none of phases. Do not call it in a process that has a
// PhaseBoard there.
std::optional<WorkerPhases> read_phases(const std::string& folder, int rank);

}  // namespace starling
