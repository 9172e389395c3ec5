#include "cli/jobs.h"

#include <cerrno>
#include <cstring>
#include <map>
#include <optional>

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "starling/core/clock.h"
#include "starling/core/descriptor.h"
#include "starling/core/error.h"
#include "starling/core/process.h"
#include "starling/train/launch.h"

namespace starling::cli {

namespace {

// In the child, which may call async-signal-safe functions alone.
[[noreturn]] void become_job(char* const* arguments, int log, int nothing, pid_t parent) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(128 + SIGTERM);  // it ended before prctl
  if (dup2(nothing, STDIN_FILENO) >= 0 && dup2(log, STDOUT_FILENO) >= 0 && dup2(log, STDERR_FILENO) >= 0)
    execv("/proc/self/exe", arguments);
  _exit(127);
}

pid_t start(const Job& job) {
  const Descriptor log(open(job.log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (log.get() < 0) throw Error(fmt::format("{}: cannot be written: {}", job.log, std::strerror(errno)));
  const Descriptor nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  std::vector<std::string> words{"starling"};
  words.insert(words.end(), job.arguments.begin(), job.arguments.end());
  const std::vector<char*> pointers = pointers_to(words);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) become_job(pointers.data(), log.get(), nothing.get(), parent);
  if (child < 0) throw Error(fmt::format("a run cannot be started: {}", std::strerror(errno)));
  return child;
}

// The running jobs. The destructor kills them.
class RunningJobs {
 public:
  RunningJobs() = default;
  ~RunningJobs() {
    send(SIGKILL);
    for (const auto& [pid, job] : running_) waitpid(pid, nullptr, 0);
  }
  RunningJobs(const RunningJobs&) = delete;
  RunningJobs& operator=(const RunningJobs&) = delete;

  void add(pid_t pid, std::size_t job) { running_[pid] = job; }
  std::size_t count() const { return running_.size(); }
  void send(int signal) const {
    for (const auto& [pid, job] : running_) kill(pid, signal);
  }
  void collect(const std::function<void(std::size_t, int)>& ended) {
    std::vector<std::pair<std::size_t, int>> gone;
    std::erase_if(running_, [&](const auto& each) {
      int status = 0;
      if (waitpid(each.first, &status, WNOHANG) != each.first) return false;
      gone.emplace_back(each.second, exit_code_of(status));
      return true;
    });
    for (const auto& [job, code] : gone) ended(job, code);
  }

 private:
  std::map<pid_t, std::size_t> running_;
};

}  // namespace

int run_jobs(const std::vector<Job>& jobs, int at_once, const std::function<void(std::size_t)>& started,
             const std::function<void(std::size_t, int)>& ended) {
  // A job that is a launcher gives its workers a second less.
  const auto to_kill = grace_from_environment() + std::chrono::seconds(2);
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  RunningJobs running;
  std::size_t next = 0;
  int ending = 0;  // the signal by which all are ended
  std::optional<Time> deadline;
  while (true) {
    while (ending == 0 && next < jobs.size() && running.count() < static_cast<std::size_t>(at_once)) {
      started(next);
      running.add(start(jobs[next]), next);
      ++next;
    }
    if (running.count() == 0) return ending;
    const int signal =
        wait_for_signal(signals, deadline ? std::optional(*deadline - Clock::now()) : std::nullopt);
    if (ending == 0 && (signal == SIGINT || signal == SIGTERM)) {
      ending = signal;
      running.send(SIGTERM);
      deadline = Clock::now() + to_kill;
    }
    running.collect([&](std::size_t job, int code) {
      if (ending == 0) ended(job, code);
    });
    if (deadline && Clock::now() >= *deadline) {
      running.send(SIGKILL);
      *deadline += to_kill;
    }
  }
}

}  // namespace starling::cli
