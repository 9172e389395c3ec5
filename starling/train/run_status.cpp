#include "starling/train/run_status.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string_view>

#include <fmt/format.h>
#include <sys/stat.h>

#include "starling/core/error.h"
#include "starling/core/text.h"
#include "starling/core/tree.h"

namespace starling {

namespace {

namespace fs = std::filesystem;

constexpr std::streamoff kTailBytes = 1 << 20;  // bytes
constexpr std::size_t kMostRecipeBytes = 1 << 20;
constexpr std::size_t kLatestLines = 10;  // of a worker, for its step time
constexpr int kMostStatusRanks = 1 << 16;
constexpr double kMostStatusSteps = 1e15;
constexpr double kLeastLate = 1, kTimesMedian = 3, kLateWithoutMedian = 60;  // seconds, factor, seconds
constexpr std::array<std::string_view, 5> kStepPhases{"data", "forward", "backward", "optimizer", "exchange"};

const Node* member_of(const Node& node, std::string_view name) {
  const auto* table = node.as<Node::Table>();
  if (table == nullptr) return nullptr;
  const auto found = std::ranges::find(*table, name, &Member::name);
  return found == table->end() ? nullptr : &found->node;
}

std::string text_at(const Node& node, std::string_view name) {
  const Node* const found = member_of(node, name);
  const auto* const value = found == nullptr ? nullptr : found->as<std::string>();
  return value == nullptr ? "" : *value;
}

std::optional<double> finite_number(const Node& node) {
  if (const auto* whole = node.as<std::int64_t>()) return static_cast<double>(*whole);
  const auto* const real = node.as<double>();
  return real != nullptr && std::isfinite(*real) ? std::optional(*real) : std::nullopt;
}

std::optional<double> number_at(const Node& node, std::string_view name) {
  const Node* const found = member_of(node, name);
  return found == nullptr ? std::nullopt : finite_number(*found);
}

std::optional<std::int64_t> whole_at(const Node& node, std::string_view name, double least, double most) {
  const auto value = number_at(node, name);
  if (!value || *value < least || *value > most || *value != std::floor(*value)) return std::nullopt;
  return static_cast<std::int64_t>(*value);
}

// Nothing for a damaged line.
std::optional<Node> line_if_whole(const std::string& line) {
  try {
    return parse_json_line(line, "", 1);
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

// The objects of whole lines among the last kTailBytes bytes of a file.
void each_of_tail(const std::string& path, const std::function<void(const Node&)>& use) {
  std::error_code none;
  if (!fs::is_regular_file(path, none)) return;
  std::ifstream file(path, std::ios::binary);
  file.seekg(0, std::ios::end);
  const std::streamoff begin = std::max<std::streamoff>(file.tellg() - kTailBytes, 0);
  file.seekg(begin);
  std::string tail(static_cast<std::size_t>(kTailBytes), '\0');
  file.read(tail.data(), kTailBytes);
  tail.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  // The first line of a tail is cut off, and the last one is not written yet.
  std::size_t from = begin == 0 ? 0 : tail.find('\n') + 1;
  for (std::size_t end; (end = tail.find('\n', from)) != std::string::npos; from = end + 1) {
    if (const auto node = line_if_whole(tail.substr(from, end - from))) use(*node);
  }
}

// Nothing for no values.
template <class T>
std::optional<T> median_of(const std::vector<WorkerStatus>& workers,
                           std::optional<T> WorkerStatus::* member) {
  std::vector<T> values;
  for (const WorkerStatus& worker : workers) {
    if (worker.*member) values.push_back(*(worker.*member));
  }
  if (values.empty()) return std::nullopt;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

class StatusReading {
 public:
  StatusReading(const std::string& folder, double now) {
    run_.folder = folder;
    run_.now = now;
  }

  RunStatus read() {
    std::error_code none;
    if (!fs::is_directory(run_.folder, none))
      throw UsageError(fmt::format("{}: is no folder of a run", in_quotes(run_.folder)));
    read_boards();
    each_of_tail(inside("metrics.jsonl"), [&](const Node& line) { add_line(line); });
    if (workers_.empty())
      throw UsageError(
          fmt::format("{}: holds no run of `starling train`: neither phases/ nor lines of "
                      "metrics.jsonl",
                      in_quotes(run_.folder)));
    for (auto& [rank, worker] : workers_) run_.workers.push_back(std::move(worker));
    read_recipe();
    each_of_tail(inside("tests.jsonl"), [&](const Node& line) { add_test(line); });
    run_.step = median_of(run_.workers, &WorkerStatus::step);
    run_.round = median_of(run_.workers, &WorkerStatus::round);
    for (const WorkerStatus& w : run_.workers) run_.membership = std::max(run_.membership, w.membership);
    run_.epoch = median_of(run_.workers, &WorkerStatus::epoch);
    run_.seconds = median_of(run_.workers, &WorkerStatus::seconds);
    run_.step_seconds = median_of(run_.workers, &WorkerStatus::step_seconds);
    run_.state = state();
    if (run_.state == RunStatus::State::running) mark_late();
    return std::move(run_);
  }

 private:
  std::string inside(const char* name) const { return (fs::path(run_.folder) / name).string(); }

  WorkerStatus& worker(int rank) {
    WorkerStatus& found = workers_[rank];
    found.rank = rank;
    return found;
  }

  // The latest board knows the number of workers. Boards of another number are of an earlier run.
  void read_boards() {
    std::vector<WorkerPhases> boards;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(inside("phases"), none)) {
      const std::string name = entry.path().filename().string();
      constexpr std::string_view kBegin = "worker-";
      const auto rank =
          name.starts_with(kBegin) ? parse_number<int>(name.substr(kBegin.size())) : std::nullopt;
      if (!rank || *rank < 0 || *rank >= kMostStatusRanks) continue;
      if (auto board = read_phases(inside("phases"), *rank)) boards.push_back(std::move(*board));
    }
    if (boards.empty()) return;
    const int workers = std::ranges::max(boards, {}, &WorkerPhases::begin).owner.workers;
    for (int rank = 0; rank < std::min(workers, kMostStatusRanks); ++rank) worker(rank);
    most_ranks_ = static_cast<int>(workers_.size());
    for (WorkerPhases& board : boards) {
      if (board.owner.workers != workers || board.owner.rank >= workers) continue;
      const int rank = board.owner.rank;
      worker(rank).phases = std::move(board);
    }
  }

  void add_line(const Node& line) {
    if (std::string chosen = text_at(line, "topology"); !chosen.empty()) chosen_ = std::move(chosen);
    const auto rank = whole_at(line, "rank", 0, most_ranks_ - 1),
               step = whole_at(line, "step", 1, kMostStatusSteps);
    if (!rank || !step) return;
    WorkerStatus& w = worker(static_cast<int>(*rank));
    auto& latest = latest_[w.rank];
    w.seconds = number_at(line, "seconds");
    // A worker that comes back may take an earlier step again.
    if (w.step && *step <= *w.step) latest.clear();
    if (w.seconds) latest.emplace_back(*step, *w.seconds);
    if (latest.size() > kLatestLines) latest.pop_front();
    w.step = step;
    w.epoch = number_at(line, "epoch");
    w.loss = number_at(line, "loss");
    w.waiting_share = number_at(line, "waiting_share");
    w.bytes_sent = whole_at(line, "bytes_sent", 0, 9e18);
    w.blocks_aborted = whole_at(line, "blocks_aborted", 0, 9e18);
    w.blocks_jumped = whole_at(line, "blocks_jumped", 0, 9e18);
    w.round = whole_at(line, "round", 0, 9e18);
    w.membership = whole_at(line, "membership", 0, 9e18);
    w.joins = whole_at(line, "joins", 0, 9e18);
    w.rate = number_at(line, "rate");
    w.distance = number_at(line, "distance");
    w.step_seconds.reset();
    if (latest.size() < 2) return;
    const double took = (latest.back().second - latest.front().second) /
                        static_cast<double>(latest.back().first - latest.front().first);
    if (took > 1e-9 && std::isfinite(took)) w.step_seconds = took;
  }

  // The score is the one number whose name no other task has.
  void add_test(const Node& line) {
    const auto step = whole_at(line, "step", 0, kMostStatusSteps);
    if (!step) return;
    run_.test = RunStatus::Test{.step = *step,
                                .score_name = "",
                                .score = {},
                                .loss = number_at(line, "test_loss"),
                                .consensus_distance = number_at(line, "consensus_distance")};
    constexpr std::array<std::string_view, 4> kOthers{"step", "seconds", "test_loss", "consensus_distance"};
    for (const Member& member : *line.as<Node::Table>()) {
      if (std::ranges::find(kOthers, member.name) != kOthers.end() || !finite_number(member.node)) continue;
      run_.test->score_name = member.name;
      run_.test->score = finite_number(member.node);
    }
  }

  void read_recipe() {
    try {
      const std::string path = inside("recipe.toml");
      const Node recipe = parse_toml(read_at_most(path, kMostRecipeBytes, "recipe"), path);
      if (const Node* const mixing = member_of(recipe, "mixing")) {
        run_.scheme = text_at(*mixing, "scheme");
        run_.topology = text_at(*mixing, "topology");
      }
    } catch (const Error&) {  // neither is known
    }
    if (run_.topology != "auto") return;
    // The choice is in the first line, and anew where other workers went on.
    if (chosen_.empty()) {
      std::ifstream metrics(inside("metrics.jsonl"), std::ios::binary);
      std::string line(1 << 16, '\0');
      metrics.read(line.data(), static_cast<std::streamsize>(line.size()));
      if (const auto first = line_if_whole(line.substr(0, line.find('\n'))))
        chosen_ = text_at(*first, "topology");
    }
    if (!chosen_.empty()) run_.topology = chosen_;
  }

  RunStatus::State state() const {
    using Process = WorkerPhases::Process;
    const auto any = [&](Process process) {
      return std::ranges::find(run_.workers, process, &WorkerStatus::process) != run_.workers.end();
    };
    struct stat summary{};
    const bool is_there = stat(inside("summary.json").c_str(), &summary) == 0 && S_ISREG(summary.st_mode);
    // A run that has just begun here has not removed that of the run before yet.
    const bool is_earlier = std::ranges::any_of(run_.workers, [&](const WorkerStatus& w) {
      return w.process() == Process::running &&
             w.phases->begin > static_cast<double>(summary.st_mtim.tv_sec) + 1;
    });
    if (is_there && !is_earlier) return RunStatus::State::finished;
    if (any(Process::running)) return RunStatus::State::running;
    return any(Process::unknown) ? RunStatus::State::unknown : RunStatus::State::ended;
  }

  void mark_late() {
    const double most =
        run_.step_seconds ? std::max(kLeastLate, kTimesMedian * *run_.step_seconds) : kLateWithoutMedian;
    bool waits = false;  // others make workers wait
    const auto mark = [&](bool exchange) {
      for (WorkerStatus& w : run_.workers) {
        const auto* const phase = w.phase();
        waits |= w.process() == WorkerPhases::Process::gone;
        if (phase == nullptr || w.process() == WorkerPhases::Process::gone) continue;
        if (std::ranges::find(kStepPhases, phase->name) == kStepPhases.end()) continue;
        if ((phase->name == "exchange") == exchange) w.late = w.seconds_in_phase(run_.now) > most;
        waits |= w.late && !exchange;
      }
    };
    mark(false);
    if (!waits) mark(true);
  }

  RunStatus run_;
  std::map<int, WorkerStatus> workers_;
  std::map<int, std::deque<std::pair<std::int64_t, double>>> latest_;  // step and seconds
  int most_ranks_ = kMostStatusRanks;
  std::string chosen_;  // topology
};

}  // namespace

WorkerPhases::Process WorkerStatus::process() const {
  return phases ? phases->process : WorkerPhases::Process::unknown;
}

const WorkerPhases::Phase* WorkerStatus::phase() const {
  return phases && phases->of(PhaseThread::training) ? &*phases->of(PhaseThread::training) : nullptr;
}

double WorkerStatus::seconds_in_phase(double now) const {
  return phase() == nullptr ? 0 : std::max(now - phase()->since, 0.0);
}

const char* name_of(RunStatus::State state) {
  constexpr std::array kNames{"unknown", "running", "finished", "ended"};
  return kNames[static_cast<std::size_t>(state)];
}

const char* name_of(WorkerPhases::Process process) {
  constexpr std::array kNames{"unknown", "running", "gone"};
  return kNames[static_cast<std::size_t>(process)];
}

RunStatus read_run_status(const std::string& folder, double now) { return StatusReading(folder, now).read(); }

}  // namespace starling
