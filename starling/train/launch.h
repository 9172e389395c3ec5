// `starling train --workers N`: the parent process starts N workers on this machine, hosts their
// store, starts those that die again if it was asked to, and ends all when it receives a signal.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "starling/core/clock.h"

namespace starling {

// How often a worker is started again that died by a signal or ended with an error.
struct Restarts {
  int most = 0;  // of one worker; 0: none is started again
  // A worker that dies before `long_life` waits: first_pause, then twice as long each time, at most
  // longest_pause. One that lived longer is started at once, and its next pause is the first again.
  Duration first_pause = std::chrono::milliseconds(500);
  Duration longest_pause = std::chrono::seconds(30);
  Duration long_life = std::chrono::seconds(30);
};

// Lets a caller follow the workers. All functions are called in the thread of launch_workers().
struct LaunchWatch {
  // `restarts`: how often this worker has been started before.
  std::function<void(int rank, int restarts, pid_t process)> started = [](int, int, pid_t) {};
  // `status`: that of waitpid(). The process is gone: its id may not be used any more. The store
  // knows it, unless the worker is started again.
  std::function<void(int rank, int status)> ended = [](int, int) {};
  // Returns the longest time until its next call; nothing: it need not be called.
  std::function<std::optional<Duration>()> look = [] { return std::nullopt; };
};

struct LaunchOptions {
  Restarts restarts = {};
  LaunchWatch watch = {};
  std::string log = {};  // a file, at whose end stdout and stderr of the workers go; empty: as ours
};

// Starts `workers` processes of this executable with these arguments. Their environment has RANK
// and the like, as torchrun sets them, a random token, and STARLING_RESTARTS: how often this worker
// has been started before. Waits for all of them. Returns the exit code of the command:
//
//   0         the workers that were left at the end have finished
//   1, 2      a worker failed and was not started again, or none is left
//   130, 143  this process received SIGINT or SIGTERM: then all workers get SIGTERM, and SIGKILL a
//             second after their grace. Or one worker after the other received such a signal
//
// say() reports a worker that dies or is told to end, in one line; the others go on. Restarts are
// for deaths and errors: no worker is started again that has finished, that was told to end by
// SIGINT or SIGTERM, or whose exit code 2 says that its input is wrong. None is either after a
// worker has finished, or if no other worker is running that it could join. A worker that is
// stopped (SIGSTOP) when another has finished gets SIGCONT.
//
// Blocks SIGINT, SIGTERM and SIGCHLD in the calling thread: call it from the main thread before
// other threads start. Throws Error if a worker cannot be started.
int launch_workers(int workers, const std::vector<std::string>& arguments,
                   const std::function<void(const std::string&)>& say, const LaunchOptions& options = {});

// STARLING_GRACE: the seconds that a worker has for its step when it is told to end; 2. Throws
// UsageError unless it is a whole number from 1 to 3600.
std::chrono::seconds grace_from_environment();

// A worker calls it first. interruption() then returns the first SIGINT or SIGTERM that comes. If
// the process still runs after its grace, since a step may wait for a neighbour, it exits at once
// with 128 + the signal. A worker of launch_workers() also ends when its parent process has ended.
// Throws as grace_from_environment().
void note_interruptions();
// The signal that came, or 0.
int interruption();

}  // namespace starling
