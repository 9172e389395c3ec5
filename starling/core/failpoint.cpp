#include "starling/core/failpoint.h"

#include <cmath>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <unistd.h>

#include "starling/core/clock.h"
#include "starling/core/error.h"
#include "starling/core/log.h"
#include "starling/core/phases.h"
#include "starling/core/random.h"
#include "starling/core/text.h"

namespace starling {

constinit std::atomic<bool> failpoints_armed{false};

namespace {

constexpr int kExitCode = 3;
constexpr double kLongestSleep = 86'400;
const std::set<std::string_view> kOnTransport{"send", "vote", "average"};
const std::vector<std::string> kActions{"kill", "stop", "exit", "throw", "sleep", "nan", "jump"};

struct Failpoint {
  std::string text;  // as it was given
  std::size_t phase = 0;
  std::int64_t step = 0;  // kEach: each
  double probability = 1;
  std::string action;
  double value = 0;             // of sleep, in seconds, or of jump
  std::int64_t fired = kNever;  // in this step
  static constexpr std::int64_t kEach = -1, kNever = -1;
};

thread_local std::optional<std::int64_t> later_step;  // FailpointStep

// The state of this process. Reads of `all` are safe: it changes while no other thread is in
// failpoint().
struct Armed {
  std::vector<Failpoint> all;  // of this rank
  int rank = 0;
  std::uint64_t seed = 0;
  std::mutex mutex;  // of Failpoint::fired
  std::atomic<std::int64_t> step = 0;
  std::atomic<bool> step_is_told = false;
  std::unique_ptr<PhaseBoard> board;
};
Armed& armed() {
  static Armed* const one = new Armed;  // never destroyed: threads may outlive main()
  return *one;
}

PhaseThread thread_of(std::size_t phase) {
  if (later_step) return PhaseThread::writer;
  return kOnTransport.contains(FailPhase::kNames[phase]) ? PhaseThread::transport : PhaseThread::training;
}

// The switch of failpoint().
void note_armed() { failpoints_armed = !armed().all.empty() || armed().board != nullptr; }

[[noreturn]] void refuse(const std::string& what, const std::string& why) {
  throw UsageError(fmt::format("environment: STARLING_FAIL: {}: {}", in_quotes(what), why));
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts{""};
  for (const char c : text) {
    if (c == at) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

std::size_t choose(const std::string& point, const char* what, const std::string& name,
                   const std::vector<std::string>& names) {
  for (std::size_t k = 0; k < names.size(); ++k) {
    if (names[k] == name) return k;
  }
  refuse(point, fmt::format("unknown {} {}{}; there are: {}", what, in_quotes(name),
                            did_you_mean(name, names), fmt::join(names, ", ")));
}

void read_step(Failpoint& point, const std::string& step) {
  if (step.starts_with('~')) {
    const auto probability = parse_number<double>(std::string_view(step).substr(1));
    if (!probability || !(*probability > 0 && *probability <= 1))
      refuse(point.text,
             fmt::format("the probability {} is not a number above 0 and at most 1", in_quotes(step)));
    point.step = Failpoint::kEach;
    point.probability = *probability;
  } else if (step == "*") {
    point.step = Failpoint::kEach;
  } else {
    const auto number = parse_number<std::int64_t>(step);
    if (!number || *number < 0)
      refuse(point.text,
             fmt::format("the step {} is not a number of at least 0, * or ~PROBABILITY", in_quotes(step)));
    point.step = *number;
  }
}

void read_action(Failpoint& point, const std::string& action) {
  const std::string_view phase = FailPhase::kNames[point.phase];
  const std::size_t equals = action.find('=');
  point.action = kActions[choose(point.text, "action", action.substr(0, equals), kActions)];
  const bool sleeps = point.action == "sleep", jumps = point.action == "jump";
  if ((sleeps || jumps) != (equals != std::string::npos))
    refuse(point.text, sleeps  ? "sleep needs its time: sleep=SECONDS"
                       : jumps ? "jump needs its value: jump=VALUE"
                               : "only sleep and jump have a value");
  if (sleeps || jumps) {
    const auto value = parse_number<double>(std::string_view(action).substr(equals + 1));
    if (sleeps && !(value && *value >= 0 && *value <= kLongestSleep))
      refuse(point.text, fmt::format("the time is not a number of seconds from 0 to {:g}", kLongestSleep));
    if (jumps && !(value && std::isfinite(*value))) refuse(point.text, "the value is not a finite number");
    point.value = *value;
  }
  if (point.action == "nan" && phase != "backward") refuse(point.text, "nan is for the phase backward only");
  if (jumps && phase != "optimizer") refuse(point.text, "jump is for the phase optimizer only");
  if (point.action == "throw" && kOnTransport.contains(phase))
    refuse(point.text, fmt::format("throw is not for the phases {}", fmt::join(kOnTransport, ", ")));
}

// The rank is nothing for each.
std::optional<int> rank_of(const std::string& point, const std::string& rank) {
  if (rank == "*") return std::nullopt;
  const auto number = parse_number<int>(rank);
  if (!number || *number < 0)
    refuse(point, fmt::format("the rank {} is not a number of at least 0 or *", in_quotes(rank)));
  return number;
}

void act(const Failpoint& point, std::int64_t step) {
  log_to_stderr(armed().rank, Level::warning)(Level::warning,
                                              fmt::format("failpoint {} at step {}", point.text, step));
  if (point.action == "kill") kill(getpid(), SIGKILL);
  if (point.action == "stop") kill(getpid(), SIGSTOP);
  if (point.action == "exit") _exit(kExitCode);
  if (point.action == "throw") throw Error(fmt::format("failpoint {} at step {}", point.text, step));
  if (point.action == "sleep") std::this_thread::sleep_for(of_seconds(point.value));
}

// Marks it as fired if it is due.
bool due(Failpoint& point, std::size_t phase, std::int64_t step) {
  if (point.phase != phase || (point.step != Failpoint::kEach && point.step != step)) return false;
  const std::lock_guard lock(armed().mutex);
  if (point.fired == step) return false;
  const std::uint64_t bits = random_bits(
      {armed().seed, static_cast<std::uint64_t>(armed().rank), phase, static_cast<std::uint64_t>(step)});
  if (uniform_of(bits) >= point.probability) return false;
  point.fired = step;
  return true;
}

}  // namespace

FailpointStep::FailpointStep(std::int64_t step) { later_step = step; }
FailpointStep::~FailpointStep() { later_step.reset(); }

std::optional<double> reach_failpoint(std::size_t phase) {
  std::optional<double> wrong;
  const std::int64_t step = later_step.value_or(armed().step);
  if (armed().board) armed().board->mark(thread_of(phase), phase, step);
  for (Failpoint& point : armed().all) {
    if (!due(point, phase, step)) continue;
    act(point, step);
    if (point.action == "nan") wrong = std::numeric_limits<double>::quiet_NaN();
    if (point.action == "jump") wrong = point.value;
  }
  return wrong;
}

void arm_failpoints(const std::string& value, int rank, int restarts) {
  Armed& a = armed();
  a.all.clear();
  note_armed();
  a.rank = rank;
  a.seed = 0;
  a.step = 0;
  a.step_is_told = false;
  if (value.empty()) return;
  bool any_life = false;
  for (const std::string& text : split(value, ',')) {
    if (text == "restart=any") {
      any_life = true;
    } else if (text.starts_with("seed=")) {
      const auto seed = parse_number<std::uint64_t>(std::string_view(text).substr(5));
      if (!seed) refuse(text, "the seed is not a number of at least 0");
      a.seed = *seed;
    } else {
      const std::vector<std::string> parts = split(text, ':');
      if (parts.size() != 4)
        refuse(text,
               "this is not phase:step:rank:action, such as backward:20:1:kill, nor seed=N or restart=any");
      Failpoint point;
      point.text = text;
      point.phase =
          choose(text, "phase", parts[0], {std::begin(FailPhase::kNames), std::end(FailPhase::kNames)});
      read_step(point, parts[1]);
      const std::optional<int> of = rank_of(text, parts[2]);
      read_action(point, parts[3]);
      if (of.value_or(rank) == rank) a.all.push_back(point);
    }
  }
  if (restarts > 0 && !any_life) a.all.clear();
  note_armed();
}

void show_phases(std::unique_ptr<PhaseBoard> board) {
  armed().board = std::move(board);
  note_armed();
}

void set_failpoint_step(std::int64_t step) {
  if (!failpoints_armed.load(std::memory_order_relaxed)) return;
  armed().step_is_told = true;
  armed().step = step;
}

void count_failpoint_step() {
  if (failpoints_armed.load(std::memory_order_relaxed) && !armed().step_is_told) ++armed().step;
}

}  // namespace starling
