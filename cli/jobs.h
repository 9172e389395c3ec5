// Processes of this command, some at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace starling::cli {

struct Job {
  std::vector<std::string> arguments;  // of `starling`
  std::string log;                     // the file for stdout and stderr
};

// Runs the jobs in their order, at most `at_once` at a time. Calls started(i) before job i starts,
// and ended(i, code) when it has ended. The code is its exit code, or 128 + the signal that killed
// it. Returns 0 if all have ended.
//
// SIGINT and SIGTERM end it. Then the jobs get SIGTERM, and SIGKILL 2 s after the grace of workers
// (train/launch.h). No other job starts, ended() is not called any more, and the signal is
// returned. The jobs end too if this process is killed. Blocks SIGINT, SIGTERM and SIGCHLD in the
// calling thread, so call it from the main thread. Throws Error if a job cannot be started.
int run_jobs(const std::vector<Job>& jobs, int at_once, const std::function<void(std::size_t)>& started,
             const std::function<void(std::size_t, int code)>& ended);

}  // namespace starling::cli
