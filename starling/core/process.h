// Starting processes, waiting for their signals, and how they ended.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <signal.h>
#include <sys/wait.h>

#include "starling/core/clock.h"

namespace starling {

// Arguments or an environment as exec() and posix_spawn() take them. They point into the texts.
inline std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Waits for one of the blocked signals, for `longest` at most. Returns the signal, or 0. Then look
// for what it may have told: another thread, such as one of OpenMP's, may take SIGCHLD and drop it.
// So this function waits for a second at most.
inline int wait_for_signal(const sigset_t& signals, std::optional<Duration> longest) {
  const Duration most = std::min<Duration>(longest.value_or(Duration::max()), std::chrono::seconds(1));
  const auto nanoseconds = std::chrono::nanoseconds(std::max(most, Duration::zero())).count();
  const timespec time{.tv_sec = nanoseconds / 1'000'000'000, .tv_nsec = nanoseconds % 1'000'000'000};
  return std::max(0, sigtimedwait(&signals, nullptr, &time));
}

// The exit code of a process that has ended with this status of waitpid(), or 128 + the signal that
// killed it.
inline int exit_code_of(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
// Whether SIGINT or SIGTERM told it to end.
inline bool was_told_to_end(int exit_code) { return exit_code == 128 + SIGINT || exit_code == 128 + SIGTERM; }

}  // namespace starling
