// `starling train --workers N`: the parent starts N workers of this machine, hosts the store at which they meet, and
// ends them when it is told to.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace starling {

// Starts `workers` processes of this executable with these arguments, RANK and its like in their environment (as
// torchrun sets them), and a random token. Waits for all of them. Returns the exit code of the command:
//
//   0         those that were left at the end are done
//   1, 2      a worker failed; or none is left
//   130, 143  SIGINT or SIGTERM came, to this process or to one of the workers: then all are ended, with SIGTERM and
//             after 3 seconds with SIGKILL
//
// A worker that dies of another signal is reported by say() in one line; the others are let go on. Blocks SIGINT,
// SIGTERM and SIGCHLD in the calling thread: call it from the main thread before other threads are started.
// Throws Error when a worker cannot be started.
int launch_workers(int workers, const std::vector<std::string>& arguments,
                   const std::function<void(const std::string&)>& say);

// In a worker, before anything else: the first SIGINT or SIGTERM is noted, for interruption() to tell. Should the
// process still be there 2 seconds later (a step may wait for a neighbour), it exits at once, with 128 + the signal.
// A worker of launch_workers() also ends when its parent is gone.
void note_interruptions();
// The signal that came, or 0.
int interruption();

}  // namespace starling
