// `starling train --workers N`: the parent process starts N workers on this machine, hosts their
// store, and ends them when it receives a signal.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace starling {

// Starts `workers` processes of this executable with these arguments. Their environment has RANK
// and the like, as torchrun sets them, and a random token. Waits for all of them. Returns the exit
// code of the command:
//
//   0         the workers that were left at the end have finished
//   1, 2      a worker failed, or none is left
//   130, 143  this process or a worker received SIGINT or SIGTERM: then all workers get SIGTERM,
//             and SIGKILL 3 seconds later
//
// say() reports a worker that dies by another signal, in one line; the others go on. Blocks SIGINT,
// SIGTERM and SIGCHLD in the calling thread: call it from the main thread before other threads
// start. Throws Error if a worker cannot be started.
int launch_workers(int workers, const std::vector<std::string>& arguments,
                   const std::function<void(const std::string&)>& say);

// A worker calls it first. interruption() then returns the first SIGINT or SIGTERM that comes. If
// the process still runs 2 seconds later, since a step may wait for a neighbour, it exits at once
// with 128 + the signal. A worker of launch_workers() also ends when its parent process has ended.
void note_interruptions();
// The signal that came, or 0.
int interruption();

}  // namespace starling
