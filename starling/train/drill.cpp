#include "starling/train/drill.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "starling/core/descriptor.h"
#include "starling/core/error.h"
#include "starling/core/phases.h"
#include "starling/core/process.h"
#include "starling/core/random.h"
#include "starling/train/launch.h"

namespace starling {

namespace {

constexpr auto kLook = std::chrono::milliseconds(50);
constexpr auto kLongestStart = std::chrono::minutes(2);  // until all workers have logged a step
constexpr double kShortestStop = 1, kLongestStop = 10;   // seconds

// The lines that are added to a file, each once it is whole.
class NewLines {
 public:
  explicit NewLines(std::string path) : path_(std::move(path)) {}

  template <class F>
  void each(F&& use) {
    if (file_.get() < 0) file_ = Descriptor(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    if (file_.get() < 0) return;
    char bytes[1 << 16];
    for (ssize_t n; (n = read(file_.get(), bytes, sizeof bytes)) > 0;) {
      for (const char c : std::string_view(bytes, static_cast<std::size_t>(n))) {
        if (c != '\n') {
          line_ += c;
          continue;
        }
        use(line_);
        line_.clear();
      }
    }
  }

 private:
  const std::string path_;
  Descriptor file_;
  std::string line_;
};

// Resident memory of a process; 0 if it has ended.
std::uint64_t resident_bytes(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/statm", process));
  std::uint64_t whole = 0, resident = 0;
  file >> whole >> resident;
  return resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

class Drill {
 public:
  explicit Drill(const DrillOptions& options)
      : options_(options), metrics_(options.out + "/metrics.jsonl"), begin_(Clock::now()) {
    report_.workers.resize(static_cast<std::size_t>(options.workers));
    processes_.resize(report_.workers.size());
    wakes_.resize(report_.workers.size());
    last_step_ = begin_;
  }

  DrillReport run() {
    LaunchOptions launch{.log = options_.out + "/drill.log"};
    // Only a worker that fails again and again waits for long.
    launch.restarts = {.most = std::numeric_limits<int>::max(),
                       .first_pause = std::chrono::milliseconds(20),
                       .longest_pause = std::chrono::seconds(10),
                       .long_life = std::min<Duration>(options_.kill_every, std::chrono::seconds(3))};
    launch.watch.started = [this](int rank, int restarts, pid_t process) {
      started(rank, restarts, process);
    };
    launch.watch.ended = [this](int rank, int status) { ended(rank, status); };
    launch.watch.look = [this]() -> std::optional<Duration> {
      look();
      return kLook;
    };
    report_.exit_code =
        launch_workers(options_.workers, options_.arguments, [](const std::string&) {}, launch);
    read_metrics();
    report_.seconds = now();
    return report_;
  }

 private:
  double now() const { return seconds(Clock::now() - begin_); }
  DrillWorker& of(int rank) { return report_.workers[static_cast<std::size_t>(rank)]; }
  DrillLife& life(int rank) { return of(rank).lives.back(); }
  pid_t& process(int rank) { return processes_[static_cast<std::size_t>(rank)]; }
  bool stopped(int rank) const { return wakes_[static_cast<std::size_t>(rank)].has_value(); }
  double draw() { return uniform_of(random_bits({options_.seed, draws_++})); }

  void started(int rank, int /*restarts*/, pid_t started) {
    process(rank) = started;
    of(rank).lives.push_back({.begin = now()});
  }

  void ended(int rank, int status) {
    read_metrics();  // what it has logged is of the life that ends
    process(rank) = 0;
    DrillLife& dead = life(rank);
    dead.end = now();
    dead.status = status;
    wake(rank);
    if (status == 0) faults_end_ = Clock::now();  // the run is at its end
    const int code = exit_code_of(status);
    if (dead.killed || code == 0 || report_.hung || was_told_to_end(code)) return;
    ++report_.deaths;
    options_.say(WIFSIGNALED(status)
                     ? fmt::format("worker {} died by itself, by signal {}", rank, WTERMSIG(status))
                     : fmt::format("worker {} failed by itself with exit code {}", rank, code));
  }

  void read_metrics() {
    metrics_.each([this](const std::string& line) {
      const auto record = nlohmann::json::parse(line, nullptr, false);
      if (!record.is_object() || !record.contains("rank") || !record.contains("step")) return;
      const auto &rank = record["rank"], &step = record["step"];
      if (!rank.is_number_unsigned() || !step.is_number_integer() || rank >= options_.workers) return;
      logged(rank.get<int>(), step.get<std::int64_t>());
    });
  }

  void logged(int rank, std::int64_t step) {
    DrillWorker& worker = of(rank);
    last_step_ = Clock::now();
    worker.step = step;
    if (worker.lives.empty() || life(rank).joined) return;
    life(rank).joined = now();
    if (worker.lives.size() == 1) {
      worker.memory_begin = resident_bytes(process(rank));
    } else {
      report_.rejoins.push_back(now() - worker.lives[worker.lives.size() - 2].end.value_or(0));
    }
  }

  void look() {
    read_metrics();
    for (int rank = 0; rank < options_.workers; ++rank) {
      if (process(rank) == 0) continue;
      if (const std::uint64_t bytes = resident_bytes(process(rank)); bytes > 0) of(rank).memory_end = bytes;
      const auto& wakes = wakes_[static_cast<std::size_t>(rank)];
      if (wakes && Clock::now() >= *wakes) wake(rank);
    }
    report_.seconds = now();
    if (!all_joined_) begin_if_all_have_joined();
    if (all_joined_ && Clock::now() >= next_ && Clock::now() < faults_end_) fault();
    const Duration longest = all_joined_ ? options_.hangs : std::max<Duration>(options_.hangs, kLongestStart);
    if (!report_.hung && Clock::now() - last_step_ > longest) hang();
    options_.progress(report_);
  }

  void begin_if_all_have_joined() {
    all_joined_ = std::ranges::all_of(report_.workers, [](const DrillWorker& worker) {
      return std::ranges::any_of(worker.lives, [](const DrillLife& life) { return life.joined.has_value(); });
    });
    if (!all_joined_) return;
    faults_end_ = Clock::now() + options_.lasts;
    plan_next();
  }

  // Exponential, so that faults come close together too.
  void plan_next() { next_ = Clock::now() + of_seconds(-seconds(options_.kill_every) * std::log1p(-draw())); }

  // One fault, if there is a worker whose loss leaves another one.
  void fault() {
    std::vector<int> victims;
    for (int rank = 0; rank < options_.workers; ++rank) {
      if (process(rank) != 0 && !stopped(rank) && !life(rank).killed && leaves_one(rank))
        victims.push_back(rank);
    }
    if (victims.empty()) return;  // soon
    const int rank = victims[static_cast<std::size_t>(draw() * static_cast<double>(victims.size()))];
    if (draw() < options_.stop_share) {
      const double length = kShortestStop + draw() * (kLongestStop - kShortestStop);
      kill(process(rank), SIGSTOP);
      life(rank).stops.push_back({.begin = now(), .end = now() + length});
      wakes_[static_cast<std::size_t>(rank)] = Clock::now() + of_seconds(length);
      ++report_.stops;
    } else {
      kill(process(rank), SIGKILL);
      life(rank).killed = true;
      ++report_.kills;
    }
    plan_next();
  }

  bool leaves_one(int victim) const {
    for (int rank = 0; rank < options_.workers; ++rank) {
      if (rank != victim && report_.there(rank)) return true;
    }
    return false;
  }

  void wake(int rank) {
    auto& wakes = wakes_[static_cast<std::size_t>(rank)];
    if (!wakes) return;
    wakes.reset();
    life(rank).stops.back().end = now();
    if (process(rank) != 0) kill(process(rank), SIGCONT);
  }

  std::string last_phase(int rank) const {
    const auto phases = read_phases(options_.out + "/phases", rank);
    return phases && !phases->text().empty() ? phases->text() : "start-up";
  }

  void hang() {
    report_.hung = true;
    for (int rank = 0; rank < options_.workers; ++rank)
      of(rank).last_phase = process(rank) == 0 ? "not running" : last_phase(rank);
    raise(SIGTERM);  // it is blocked here: launch_workers() sees it, and ends all
  }

  const DrillOptions& options_;
  NewLines metrics_;
  const Time begin_;
  DrillReport report_;
  std::vector<pid_t> processes_;            // by rank; 0: none
  std::vector<std::optional<Time>> wakes_;  // of stopped workers
  Time last_step_;                          // when a worker has logged one
  Time next_{}, faults_end_{};
  bool all_joined_ = false;
  std::uint64_t draws_ = 0;
};

}  // namespace

int DrillReport::restarts() const {
  int starts = 0;
  for (const DrillWorker& worker : workers) starts += static_cast<int>(worker.lives.size()) - 1;
  return starts;
}

bool DrillReport::there(int rank) const {
  const DrillWorker& worker = workers[static_cast<std::size_t>(rank)];
  if (worker.lives.empty()) return false;
  const DrillLife& life = worker.lives.back();
  const bool stopped = !life.stops.empty() && life.stops.back().end > seconds;
  return life.joined && !life.end && !life.killed && !stopped;
}

DrillReport drill(const DrillOptions& options) {
  std::error_code error;
  std::filesystem::create_directories(options.out, error);
  if (error) throw Error(fmt::format("{}: cannot be made: {}", options.out, error.message()));
  std::vector<std::string> earlier{"metrics.jsonl", "summary.json", "drill.log"};
  for (int rank = 0; rank < options.workers; ++rank) earlier.push_back(fmt::format("phases/worker-{}", rank));
  for (const std::string& name : earlier) {
    std::filesystem::remove(std::filesystem::path(options.out) / name, error);
    if (error) throw Error(fmt::format("{}/{}: cannot be removed: {}", options.out, name, error.message()));
  }
  return Drill(options).run();
}

}  // namespace starling
