#include "starling/train/launch.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "starling/core/clock.h"
#include "starling/core/error.h"
#include "starling/core/process.h"
#include "starling/core/text.h"
#include "starling/transport/c10d/launcher.h"
#include "starling/world/token.h"

namespace starling {

namespace {

constexpr const char* kGrace = "STARLING_GRACE";
constexpr const char* kParent = "STARLING_LAUNCHER_PID";
constexpr const char* kRestarts = "STARLING_RESTARTS";

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

pid_t spawn(std::vector<std::string> arguments, std::vector<std::string> environment,
            const std::string& log) {
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (!log.empty()) {
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_APPEND,
                                     0644);
    posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  }
  pid_t pid = 0;
  const int error = posix_spawn(&pid, "/proc/self/exe", &actions, &attributes, pointers_to(arguments).data(),
                                pointers_to(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) throw Error(fmt::format("a worker cannot be started: {}", std::strerror(error)));
  return pid;
}

// A rank: its process, or when the next one starts.
struct LocalWorker {
  pid_t process = 0;  // 0: none is running
  bool is_stopped = false;
  int restarts = 0;
  Time started{};
  Duration pause{};         // before the next restart, if it dies soon
  std::optional<Time> due;  // of a restart
};

// All ranks. The destructor kills those that run.
class LocalWorkers {
 public:
  using Start = std::function<pid_t(int rank, int restarts)>;
  using Say = std::function<void(const std::string&)>;

  // gave_up(): a worker has ended and is not started again.
  LocalWorkers(int count, const LaunchOptions& options, Start start,
               std::function<void(int rank, const std::string& how)> gave_up, const Say& say)
      : options_(options),
        start_(std::move(start)),
        gave_up_(std::move(gave_up)),
        say_(say),
        workers_(static_cast<std::size_t>(count)) {}
  ~LocalWorkers() {
    send(SIGKILL);
    for (const LocalWorker& worker : workers_) {
      if (worker.process != 0) waitpid(worker.process, nullptr, 0);
    }
  }
  LocalWorkers(const LocalWorkers&) = delete;
  LocalWorkers& operator=(const LocalWorkers&) = delete;

  void start_all() {
    for (int rank = 0; rank < static_cast<int>(workers_.size()); ++rank) {
      of(rank).pause = options_.restarts.first_pause;
      start(rank);
    }
  }
  void start_due() {
    for (int rank = 0; rank < static_cast<int>(workers_.size()); ++rank) {
      LocalWorker& worker = of(rank);
      if (!worker.due || *worker.due > Clock::now()) continue;
      ++worker.restarts;
      try {
        start(rank);
      } catch (const Error& failure) {  // the machine is short of something: the others go on
        say_(fmt::format("worker {} is not restarted: {}", rank, failure.what()));
        gave_up_(rank, "could not be restarted");
      }
    }
  }
  std::optional<Time> next_due() const {
    std::optional<Time> next;
    for (const LocalWorker& worker : workers_) {
      if (worker.due && (!next || *worker.due < *next)) next = worker.due;
    }
    return next;
  }
  bool running() const {
    return std::ranges::any_of(workers_, [](const LocalWorker& worker) { return worker.process != 0; });
  }
  void send(int signal) const {
    for (const LocalWorker& worker : workers_) {
      if (worker.process != 0) kill(worker.process, signal);
    }
  }
  // Collects the workers that have ended. `quietly`: they were asked to end.
  void collect(bool quietly) {
    for (int rank = 0; rank < static_cast<int>(workers_.size()); ++rank) {
      LocalWorker& worker = of(rank);
      const int wanted = WNOHANG | WUNTRACED | WCONTINUED;
      for (int status = 0; worker.process != 0 && waitpid(worker.process, &status, wanted) > 0;) {
        worker.is_stopped = WIFSTOPPED(status);
        if (worker.is_stopped || WIFCONTINUED(status)) continue;
        worker.process = 0;
        ended(rank, status, quietly);
      }
    }
    if (done_ > 0) continue_stopped();
    if (!running() && next_due() && !quietly) say_("no worker is left that another one could join");
    if (!running() || quietly || done_ > 0) start_none();
  }
  int exit_code() const {
    if (failed_ > 0) return failed_;
    if (done_ > 0) return 0;
    return told_ > 0 ? told_ : std::max(came_late_, 1);
  }

 private:
  LocalWorker& of(int rank) { return workers_[static_cast<std::size_t>(rank)]; }

  void start(int rank) {
    LocalWorker& worker = of(rank);
    worker.due.reset();
    worker.started = Clock::now();
    worker.process = start_(rank, worker.restarts);
    options_.watch.started(rank, worker.restarts, worker.process);
  }

  // The others do not wait for it any more, but the command does.
  void continue_stopped() {
    for (int rank = 0; rank < static_cast<int>(workers_.size()); ++rank) {
      if (!std::exchange(of(rank).is_stopped, false)) continue;
      say_(fmt::format("worker {} is stopped, and another has finished: it is continued", rank));
      kill(of(rank).process, SIGCONT);
    }
  }

  void start_none() {
    for (int rank = 0; rank < static_cast<int>(workers_.size()); ++rank) {
      if (!of(rank).due) continue;
      of(rank).due.reset();
      gave_up_(rank, "ended, and is not started again");
    }
  }

  void ended(int rank, int status, bool quietly) {
    const int code = exit_code_of(status);
    const std::string how = WIFSIGNALED(status) ? fmt::format("was killed by signal {}", WTERMSIG(status))
                                                : fmt::format("ended with exit code {}", code);
    const bool told = was_told_to_end(code);
    const bool again = code != 0 && !told && !quietly && starts_again(rank, code);
    if (!again) gave_up_(rank, how);
    options_.watch.ended(rank, status);
    if (code == 0) {
      ++done_;
    } else if (told) {
      told_ = code;
      if (!quietly) say_(fmt::format("worker {} was told to end by signal {}", rank, code - 128));
    } else {
      // Its input was right before: it has come, or come back, when no other worker was left.
      int& failed = (of(rank).restarts > 0 || done_ > 0) && code == kUsage ? came_late_ : failed_;
      if (WIFEXITED(status) && !again) failed = std::max(failed, code);
      if (quietly) return;
      const std::string what =
          WIFEXITED(status) ? fmt::format("failed with exit code {}", code) : std::string(how);
      say_(fmt::format("worker {} {}{}", rank, what, next_of(rank)));
    }
  }

  // Decides it, and when.
  bool starts_again(int rank, int code) {
    const Restarts& with = options_.restarts;
    LocalWorker& worker = of(rank);
    if (worker.restarts >= with.most || code == kUsage || done_ > 0) return false;
    const bool lived = Clock::now() - worker.started >= with.long_life;
    worker.due = Clock::now() + (lived ? Duration::zero() : worker.pause);
    worker.pause = lived ? with.first_pause : std::min(2 * worker.pause, with.longest_pause);
    return true;
  }

  std::string next_of(int rank) {
    const int most = options_.restarts.most;
    const LocalWorker& worker = of(rank);
    if (most == 0) return "";
    if (!worker.due) {
      return worker.restarts < most ? "; it is not restarted"
                                    : fmt::format("; it has been restarted {} times, the most", most);
    }
    const double pause = seconds(*worker.due - Clock::now());
    return fmt::format("; restarted{} ({} of {})", pause < 0.05 ? "" : fmt::format(" in {:.1f} s", pause),
                       worker.restarts + 1, most);
  }

  static constexpr int kUsage = 2;  // the exit code for wrong input
  const LaunchOptions& options_;
  const Start start_;
  const std::function<void(int rank, const std::string& how)> gave_up_;
  const Say& say_;
  std::vector<LocalWorker> workers_;  // by rank
  int done_ = 0;
  int failed_ = 0;     // largest exit code of a failed worker
  int came_late_ = 0;  // the same of workers that were started again, and joined nobody
  int told_ = 0;       // exit code of a worker that was told to end
};

std::optional<Duration> shorter(std::optional<Duration> a, std::optional<Duration> b) {
  return a && b ? std::min(*a, *b) : a ? a : b;
}

std::optional<Duration> time_to(std::optional<Time> time) {
  return time ? std::optional(*time - Clock::now()) : std::nullopt;
}

std::atomic<int> noted{0};
std::atomic<unsigned> seconds_to_end{0};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<unsigned>::is_always_lock_free);

void on_interruption(int signal) {
  int none = 0;
  if (noted.compare_exchange_strong(none, signal)) alarm(seconds_to_end);
}
void on_alarm(int) { _exit(128 + noted.load()); }

}  // namespace

std::chrono::seconds grace_from_environment() {
  constexpr int kUsual = 2, kMost = 3600;
  const char* const value = std::getenv(kGrace);
  if (value == nullptr || *value == '\0') return std::chrono::seconds(kUsual);
  const std::optional<int> grace = parse_number<int>(value);
  if (!grace || *grace < 1 || *grace > kMost)
    throw UsageError(
        fmt::format("environment: {}='{}' is not allowed: a whole number from 1 to {}, the seconds "
                    "that a worker has for its step when it is told to end",
                    kGrace, value, kMost));
  return std::chrono::seconds(*grace);
}

int launch_workers(int count, const std::vector<std::string>& arguments,
                   const std::function<void(const std::string&)>& say, const LaunchOptions& options) {
  const auto to_kill = grace_from_environment() + std::chrono::seconds(1);  // from SIGTERM to SIGKILL
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
  const auto start = [&](int rank, int restarts) {
    variables["RANK"] = variables["LOCAL_RANK"] = fmt::format("{}", rank);
    variables[kRestarts] = fmt::format("{}", restarts);
    if (options.restarts.most > 0) variables["STARLING_REJOIN"] = "1";
    return spawn(command, environment_with(variables), options.log);
  };
  // The store names no worker as ended that comes back: those that wait for it go on waiting.
  const auto gave_up = [&](int rank, const std::string& how) { meeting_point.ended(rank, how); };
  LocalWorkers workers(count, options, start, gave_up, say);
  workers.start_all();

  int ending = 0;                // the signal by which all workers are ended
  std::optional<Time> deadline;  // then SIGKILL
  while (workers.running()) {
    const auto longest =
        shorter(options.watch.look(), shorter(time_to(deadline), time_to(workers.next_due())));
    const int signal = wait_for_signal(signals, longest);
    if (ending == 0 && (signal == SIGINT || signal == SIGTERM)) {
      say(fmt::format("signal {}: ending the workers", signal));
      ending = signal;
      deadline = Clock::now() + to_kill;
      workers.send(SIGTERM);
    }
    workers.collect(ending != 0);
    if (ending == 0) workers.start_due();
    if (deadline && Clock::now() >= *deadline) {
      workers.send(SIGKILL);
      *deadline += to_kill;
    }
  }
  return ending != 0 ? 128 + ending : workers.exit_code();
}

void note_interruptions() {
  seconds_to_end = static_cast<unsigned>(grace_from_environment().count());
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
