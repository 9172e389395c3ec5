#include "starling/train/run_folder.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starling/core/config.h"
#include "starling/core/error.h"
#include "starling/core/exists.h"
#include "starling/core/text.h"
#include "starling/core/tree_reader.h"
#include "starling/core/whole.h"

namespace starling {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostSummary = 16 << 20;  // bytes: counts of a thousand workers' classes
constexpr std::size_t kLongestLine = 16 << 20;  // of a worker with a thousand neighbours: 100 KB
constexpr double kMostSteps = 1e15;             // and gradients
constexpr int kMostRanks = 1 << 20;
constexpr double kLargest = 1e100;  // sums of such numbers are finite

// The numbers of one object.
class Record : TreeReader {
 public:
  Record(std::string file, Node node) : TreeReader(std::move(file)), node_(std::move(node)) {}

  // A whole number in this range.
  double whole(std::string_view key, double least, double most) const {
    const double value = finite(key).value_or(NAN);
    if (!is_whole_number(value, least, most))
      refuse_key(key, fmt::format("must be a whole number from {:.0f} to {:.0f}", least, most));
    return value;
  }
  double not_negative(std::string_view key) const {
    const double value = finite(key).value_or(NAN);
    if (!(value >= 0)) refuse_key(key, "must be a number from 0 to 1e100");
    return value;
  }
  // Nothing for a null, by which a file says that the number was not finite.
  std::optional<double> finite(std::string_view key) const {
    const Node& node = needed(node_, key);
    const std::optional<double> number = number_in(node);
    if (number && std::abs(*number) <= kLargest) return number;
    if (number || node.as<Node::Other>() == nullptr)
      refuse_key(key, "must be a number from -1e100 to 1e100, or null");
    return std::nullopt;
  }
  std::string text(std::string_view key) const {
    const auto* text = needed(node_, key).as<std::string>();
    if (text == nullptr) refuse_key(key, "must be a text");
    return *text;
  }
  bool flag(std::string_view key) const {
    const auto* flag = needed(node_, key).as<bool>();
    if (flag == nullptr) refuse_key(key, "must be true or false");
    return *flag;
  }
  bool has(std::string_view key) const { return find(node_, key) != nullptr; }
  [[noreturn]] void refuse(const std::string& what) const { TreeReader::refuse(node_.line, what); }

 private:
  [[noreturn]] void refuse_key(std::string_view key, const std::string& what) const {
    refuse(fmt::format("{} {}", key, what));
  }
  const Node node_;
};

void for_each_line(const std::string& path, const std::function<void(const Record&)>& f) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) throw UsageError(fmt::format("{}: is no file", path));
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UsageError(fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.size() > kLongestLine)
      throw UsageError(fmt::format("{}: longer than {} bytes, so it is no line of a run", place(path, number),
                                   kLongestLine));
    f(Record(path, parse_json_line(line, path, number)));
  }
}

// ---------------------------------------------------------------- settings

std::string shown(const Node& node) {  // as TOML writes it
  if (const auto* flag = node.as<bool>()) return *flag ? "true" : "false";
  if (const auto* whole = node.as<std::int64_t>()) return fmt::format("{}", *whole);
  if (const auto* real = node.as<double>()) return fmt::format("{}", *real);
  if (const auto* text = node.as<std::string>()) return in_quotes(*text);
  if (const auto* array = node.as<Node::Array>()) {
    std::vector<std::string> parts;
    for (const Node& element : *array) parts.push_back(shown(element));
    return fmt::format("[{}]", fmt::join(parts, ", "));
  }
  return node.kind();
}

// The keys in the order of the file, those of sections as "section.key".
void add_settings(const Node& node, const std::string& prefix, RunFolder& run) {
  std::vector<const Member*> members;
  for (const Member& member : *node.as<Node::Table>()) members.push_back(&member);
  std::ranges::stable_sort(members, {}, &Member::line);
  for (const Member* member : members) {
    const std::string path = prefix + member->name;
    if (member->node.as<Node::Table>() != nullptr) {
      add_settings(member->node, path + ".", run);
    } else {
      run.settings.emplace_back(path, shown(member->node));
    }
  }
}

std::string setting(const RunFolder& run, const std::string& path) {
  for (const auto& [name, value] : run.settings) {
    if (name == path) return value;
  }
  return "";
}

// ---------------------------------------------------------------- curves

// The workers' values at one step.
struct Values {
  int count = 0;
  double sum = 0, least = 0, most = 0;

  void add(double value) {
    least = count == 0 ? value : std::min(least, value);
    most = count == 0 ? value : std::max(most, value);
    sum += value;
    ++count;
  }
  double mean() const { return sum / count; }
};

void add_point(RunCurve& curve, RunPoint at, const Values& values) {
  if (values.count == 0) return;
  at.value = values.mean(), at.least = values.least, at.most = values.most;
  curve.push_back(at);
}

// The points of several runs fit together, so one that is not finite stays.
void add_point(RunCurve& curve, RunPoint at, std::optional<double> value) {
  at.value = at.least = at.most = value.value_or(NAN);
  curve.push_back(at);
}

// The bytes sent until this step, between those of the points around it.
double bytes_at(const RunCurve& curve, double step) {
  const auto after = std::ranges::lower_bound(curve, step, {}, &RunPoint::step);
  if (after == curve.end()) return curve.empty() ? 0 : curve.back().bytes;
  const RunPoint before = after == curve.begin() ? RunPoint{} : *std::prev(after);
  if (after->step <= before.step) return after->bytes;
  return before.bytes + (after->bytes - before.bytes) * (step - before.step) / (after->step - before.step);
}

std::optional<double> last_of(const RunCurve& curve) {
  if (curve.empty() || std::isnan(curve.back().value)) return std::nullopt;
  return curve.back().value;
}

// ---------------------------------------------------------------- train

// metrics.jsonl: a line for each logged step of each worker.
class Steps {
 public:
  explicit Steps(bool resumed) : resumed_(resumed) {}

  void add(const Record& record, RunFolder& run) {
    if (record.has("topology")) {  // the choice of mixing.topology = auto
      run.topology = record.text("topology");
      return;
    }
    const auto rank = static_cast<int>(record.whole("rank", 0, kMostRanks - 1));
    const double step = record.whole("step", 1, kMostSteps);
    const auto [found, is_new] = workers_.try_emplace(rank);
    Worker& worker = found->second;
    const double sent = record.not_negative("bytes_sent");
    // A resumed run counts them anew. So does a worker that comes back, which may take earlier
    // steps again.
    if (step <= worker.step && sent >= worker.sent)
      record.refuse(
          fmt::format("step {:.0f} of rank {} does not come after its step {:.0f}", step, rank, worker.step));
    const double more = sent < worker.sent ? sent : sent - worker.sent;
    const double steps = step - std::exchange(worker.step, step);
    worker.bytes += more;
    worker.sent = sent;
    if (step <= worker.latest) return;
    worker.latest = step;
    // The first line of a worker that came later, or of a resumed run, does not say how many steps
    // it counts.
    const bool counts = !is_new || (!resumed_ && (groups_.empty() || step <= groups_.begin()->first));
    Group& group = groups_[step];
    if (counts) group.step_bytes.add(more / steps);
    group.seconds.add(record.not_negative("seconds"));
    group.bytes.add(worker.bytes);
    const auto add_if = [&](Values& values, const char* key) {
      if (const auto value = record.finite(key)) values.add(*value);
    };
    add_if(group.loss, "loss");
    add_if(group.lr, "lr");
    add_if(group.waiting_share, "waiting_share");
    if (record.has("distance")) add_if(group.distance, "distance");
  }

  void finish(RunFolder& run) const {
    for (const auto& [step, group] : groups_) {
      const RunPoint at{.step = step, .seconds = group.seconds.mean(), .bytes = group.bytes.mean()};
      add_point(run.loss, at, group.loss);
      if (group.loss.count > 1) add_point(run.spread, at, group.loss.most - group.loss.least);
      add_point(run.lr, at, group.lr);
      add_point(run.waiting_share, at, group.waiting_share);
      add_point(run.step_bytes, at, group.step_bytes);
      add_point(run.distance, at, group.distance);
      run.end.steps = step;
      run.end.seconds = at.seconds;
      run.end.bytes = at.bytes;
    }
    run.end.loss = last_of(run.loss);
    run.end.waiting_share = last_of(run.waiting_share);
    run.end.workers = workers_.empty() ? 0 : workers_.rbegin()->first + 1;
  }

 private:
  struct Worker {
    double step = 0;    // of the line before
    double latest = 0;  // step
    double sent = 0;    // as its latest line says
    double bytes = 0;   // in all of its lines
  };
  struct Group {
    Values seconds, bytes, loss, lr, waiting_share, step_bytes, distance;
  };
  const bool resumed_;
  std::map<int, Worker> workers_;
  std::map<double, Group> groups_;  // by step
};

void read_tests(const std::string& path, const std::string& score, RunFolder& run) {
  if (!exists(path)) return;
  double before = 0;
  for_each_line(path, [&](const Record& record) {
    RunPoint at{.step = record.whole("step", 1, kMostSteps), .seconds = record.not_negative("seconds")};
    if (at.step < before) record.refuse(fmt::format("step {:.0f} comes after step {:.0f}", at.step, before));
    before = at.step;
    at.bytes = bytes_at(run.loss, at.step);
    add_point(run.score, at, record.finite(score));
    add_point(run.test_loss, at, record.finite("test_loss"));
    add_point(run.consensus_distance, at, record.finite("consensus_distance"));
  });
  run.end.test_loss = last_of(run.test_loss);
  run.end.score = last_of(run.score);
  run.end.consensus_distance = last_of(run.consensus_distance);
}

void read_summary(const std::string& path, const std::string& score, RunFolder& run) {
  if (!exists(path)) return;
  const Record summary(path, parse_json(read_at_most(path, kMostSummary, "summary of a run"), path));
  run.topology = summary.text("schedule");
  run.end = {.finished = true,
             .workers = static_cast<int>(summary.whole("workers", 1, kMostRanks)),
             .workers_lost = static_cast<int>(summary.whole("workers_lost", 0, kMostRanks)),
             .bytes_computed = summary.flag("bytes_computed"),
             .steps = summary.whole("steps", 1, kMostSteps),
             .seconds = summary.not_negative("seconds"),
             .loss = summary.finite("loss"),
             .test_loss = summary.finite("test_loss"),
             .score = summary.finite(score),
             .worst_score = summary.finite("worst_" + score),
             .consensus_distance = summary.finite("consensus_distance"),
             .bytes = summary.not_negative("bytes_sent_per_worker"),
             .waiting_share = summary.finite("waiting_share")};
}

// ---------------------------------------------------------------- simulate

void read_looks(const std::string& path, const std::string& score, RunFolder& run) {
  const double n = run.end.workers;
  RunPoint before;
  for_each_line(path, [&](const Record& record) {
    const RunPoint at{.step = record.whole("gradients", 0, kMostSteps) / n,
                      .seconds = record.not_negative("seconds"),
                      .bytes = record.not_negative("bytes_sent") / n};
    if (at.step < before.step || at.seconds < before.seconds)
      record.refuse("it is of an earlier time than the line before");
    const std::optional<double> loss = record.finite("loss"), least = record.finite("loss_least"),
                                most = record.finite("loss_most");
    if (loss && least && most) {
      add_point(run.loss, at, Values{.count = 1, .sum = *loss, .least = *least, .most = *most});
      if (n > 1) add_point(run.spread, at, *most - *least);
    } else {
      add_point(run.loss, at, std::nullopt);
      if (n > 1) add_point(run.spread, at, std::nullopt);
    }
    add_point(run.lr, at, record.finite("lr"));
    add_point(run.waiting_share, at, record.finite("waiting_share"));
    if (at.step > before.step) {
      const double sent = (at.bytes - before.bytes) / (at.step - before.step);
      add_point(run.step_bytes, at, std::optional(sent));
    }
    add_point(run.score, at, record.finite(score));
    add_point(run.test_loss, at, record.finite("test_loss"));
    add_point(run.consensus_distance, at, record.finite("consensus_distance"));
    before = at;
  });
  RunFigures& end = run.end;
  end.finished = true;
  end.steps = before.step, end.seconds = before.seconds, end.bytes = before.bytes;
  end.loss = last_of(run.loss), end.test_loss = last_of(run.test_loss), end.score = last_of(run.score);
  end.consensus_distance = last_of(run.consensus_distance);
  double waited = 0, until = 0;  // the mean over the time
  for (const RunPoint& point : run.waiting_share)
    waited += point.value * (point.seconds - std::exchange(until, point.seconds));
  if (until > 0 && std::isfinite(waited)) end.waiting_share = waited / until;
}

}  // namespace

RunFolder read_run_folder(const std::string& folder, const std::map<std::string, std::string>& scores) {
  RunFolder run;
  run.folder = folder;
  const auto inside = [&](const char* name) { return (fs::path(folder) / name).string(); };
  const std::string metrics = inside("metrics.jsonl"), looks = inside("simulate.jsonl"),
                    recipe = inside("recipe.toml");
  run.simulated = exists(looks);
  if (run.simulated && exists(metrics))
    throw UsageError(
        fmt::format("{}: holds two runs, one in metrics.jsonl and one in simulate.jsonl", folder));
  if (!run.simulated && !exists(metrics)) {
    throw UsageError(fmt::format(
        "{}: is no folder of a run: there is no metrics.jsonl of `starling train`, nor a simulate.jsonl",
        folder));
  }

  const Node values = parse_toml(read_at_most(recipe, Config::kMostBytes, "recipe"), recipe);
  add_settings(values, "", run);
  for (const auto& [task, score] : scores) {
    if (setting(run, "data.name") == in_quotes(task)) run.task = task;
  }
  if (run.task.empty()) {
    std::vector<std::string> known;
    for (const auto& [task, score] : scores) known.push_back(task);
    throw UsageError(
        fmt::format("{}: data.name is none of the known tasks: {}", recipe, fmt::join(known, ", ")));
  }
  const std::string& score = scores.at(run.task);

  if (run.simulated) {
    const std::string path = inside("cluster.json");
    const Node node = parse_json(read_at_most(path, kMostSummary, "virtual cluster"), path);
    run.end.workers = static_cast<int>(Record(path, node).whole("workers", 1, kMostRanks));
    add_settings(node, "cluster.", run);
    std::erase_if(run.settings, [](const auto& setting) { return setting.first == "cluster.workers"; });
    read_looks(looks, score, run);
  } else {
    Steps steps(setting(run, "checkpoint.resume").size() > std::string_view("\"\"").size());
    for_each_line(metrics, [&](const Record& record) { steps.add(record, run); });
    steps.finish(run);
    read_tests(inside("tests.jsonl"), score, run);
    read_summary(inside("summary.json"), score, run);
  }
  run.settings.emplace(run.settings.begin(), "workers", fmt::format("{}", run.end.workers));
  if (run.loss.empty())
    throw UsageError(fmt::format("{}: there is no step of a run yet", run.simulated ? looks : metrics));
  return run;
}

}  // namespace starling
