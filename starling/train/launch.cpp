#include "starling/train/launch.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>

#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "starling/core/clock.h"
#include "starling/core/error.h"
#include "starling/core/process.h"
#include "starling/transport/c10d/launcher.h"
#include "starling/world/token.h"

namespace starling {

namespace {

constexpr auto kGrace = std::chrono::seconds(3);  // between SIGTERM and SIGKILL
constexpr unsigned kAlarm = 2;                    // seconds for an interrupted worker to end
constexpr const char* kParent = "STARLING_LAUNCHER_PID";

using Variables = std::map<std::string, std::string>;

// This process's environment, with the changed variables.
std::vector<std::string> environment_with(const Variables& changed) {
  std::vector<std::string> lines;
  for (char** line = environ; *line; ++line) {
    const std::string text = *line;
    if (!changed.contains(text.substr(0, text.find('=')))) lines.push_back(text);
  }
  for (const auto& [name, value] : changed) lines.push_back(name + "=" + value);
  return lines;
}

pid_t spawn(std::vector<std::string> arguments, std::vector<std::string> environment) {
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, "/proc/self/exe", nullptr, &attributes, pointers_to(arguments).data(),
                                pointers_to(environment).data());
  posix_spawnattr_destroy(&attributes);
  if (error != 0) throw Error(fmt::format("a worker cannot be started: {}", std::strerror(error)));
  return pid;
}

// The running workers, and the exit codes of the others. The destructor kills the running ones.
class Workers {
 public:
  explicit Workers(std::function<void(int rank, const std::string& how)> ended,
                   const std::function<void(const std::string&)>& say)
      : ended_(std::move(ended)), say_(say) {}
  ~Workers() {
    send(SIGKILL);
    for (const auto& [pid, rank] : running_) waitpid(pid, nullptr, 0);
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  void add(pid_t pid, int rank) { running_[pid] = rank; }
  bool any() const { return !running_.empty(); }
  void send(int signal) const {
    for (const auto& [pid, rank] : running_) kill(pid, signal);
  }
  // Collects the workers that have ended. `quietly`: they were asked to end.
  void collect(bool quietly) {
    std::erase_if(running_, [&](const auto& worker) {
      int status = 0;
      if (waitpid(worker.first, &status, WNOHANG) != worker.first) return false;
      ended(worker.second, status, quietly);
      return true;
    });
  }
  std::optional<int> interrupted_by() const { return interrupted_by_; }
  int exit_code() const { return failed_ > 0 ? failed_ : done_ > 0 ? 0 : 1; }

 private:
  void ended(int rank, int status, bool quietly) {
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    const std::string how = WIFSIGNALED(status) ? fmt::format("was killed by signal {}", WTERMSIG(status))
                                                : fmt::format("ended with exit code {}", code);
    ended_(rank, how);
    if (code == 0) {
      ++done_;
    } else if (code == 128 + SIGINT || code == 128 + SIGTERM) {
      if (!quietly && !interrupted_by_) {
        say_(fmt::format("worker {} was told to end by signal {}, so all do", rank, code - 128));
      }
      if (!interrupted_by_) interrupted_by_ = code - 128;
    } else if (WIFSIGNALED(status)) {
      if (!quietly) say_(fmt::format("worker {} {}", rank, how));
    } else {
      failed_ = std::max(failed_, code);
      if (!quietly) say_(fmt::format("worker {} failed with exit code {}", rank, code));
    }
  }

  const std::function<void(int rank, const std::string& how)> ended_;
  const std::function<void(const std::string&)>& say_;
  std::map<pid_t, int> running_;  // -> rank
  int done_ = 0;
  int failed_ = 0;  // largest exit code of a failed worker
  std::optional<int> interrupted_by_;
};

std::atomic<int> noted{0};
static_assert(std::atomic<int>::is_always_lock_free);

void on_interruption(int signal) {
  int none = 0;
  if (noted.compare_exchange_strong(none, signal)) alarm(kAlarm);
}
void on_alarm(int) { _exit(128 + noted.load()); }

}  // namespace

int launch_workers(int count, const std::vector<std::string>& arguments,
                   const std::function<void(const std::string&)>& say) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  const MeetingPoint meeting_point;
  Variables variables{{"WORLD_SIZE", fmt::format("{}", count)},
                      {"LOCAL_WORLD_SIZE", fmt::format("{}", count)},
                      meeting_point.variable(),
                      {"STARLING_TOKEN", random_token()},
                      {"STARLING_TOKEN_FILE", ""},  // a file would take precedence
                      {kParent, fmt::format("{}", getpid())}};
  std::vector<std::string> command{"starling"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  Workers workers([&](int rank, const std::string& how) { meeting_point.ended(rank, how); }, say);
  for (int rank = 0; rank < count; ++rank) {
    variables["RANK"] = variables["LOCAL_RANK"] = fmt::format("{}", rank);
    workers.add(spawn(command, environment_with(variables)), rank);
  }

  int ending = 0;                // the signal by which all workers are ended
  std::optional<Time> deadline;  // then SIGKILL
  const auto end_all = [&](int signal) {
    ending = signal;
    deadline = Clock::now() + kGrace;
    workers.send(SIGTERM);
  };
  while (workers.any()) {
    const int signal =
        wait_for_signal(signals, deadline ? std::optional(*deadline - Clock::now()) : std::nullopt);
    if (ending == 0 && (signal == SIGINT || signal == SIGTERM)) {
      say(fmt::format("signal {}: ending the workers", signal));
      end_all(signal);
    }
    workers.collect(ending != 0);
    if (ending == 0 && workers.interrupted_by()) end_all(*workers.interrupted_by());
    if (deadline && Clock::now() >= *deadline) {
      workers.send(SIGKILL);
      *deadline += kGrace;
    }
  }
  return ending != 0 ? 128 + ending : workers.exit_code();
}

void note_interruptions() {
  struct sigaction action{};
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  action.sa_handler = on_interruption;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  action.sa_handler = on_alarm;
  sigaction(SIGALRM, &action, nullptr);
  if (const char* parent = std::getenv(kParent)) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (fmt::format("{}", getppid()) != parent) raise(SIGTERM);  // it ended before prctl
  }
}

int interruption() { return noted.load(); }

}  // namespace starling
