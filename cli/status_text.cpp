#include "cli/status_text.h"

#include <array>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/json.h"
#include "cli/table.h"
#include "starling/core/text.h"

namespace starling::cli {

namespace {

using Json = nlohmann::ordered_json;

std::optional<double> per_second(const std::optional<double>& step_seconds) {
  return step_seconds ? std::optional(1 / *step_seconds) : std::nullopt;
}

std::string worker_host(const WorkerStatus& worker) { return worker.phases ? worker.phases->host : ""; }

template <class T>
std::string or_dash(const std::optional<T>& value, const char* format) {
  return value ? fmt::format(fmt::runtime(format), *value) : "-";
}

std::string phase_text(const WorkerStatus& worker, double now) {
  return fmt::format("{} of step {} for {:.1f} s", worker.phase()->name, worker.phase()->step,
                     worker.seconds_in_phase(now));
}

constexpr std::array kWorkerColumns{
    WorkerColumn{"worker", 0, [](const WorkerStatus& w, double) { return fmt::format("{}", w.rank); }},
    WorkerColumn{"host", 7,
                 [](const WorkerStatus& w, double) {
                   return w.phases ? printable(w.phases->host) : std::string("-");
                 }},
    WorkerColumn{"process", 1,
                 [](const WorkerStatus& w, double) { return std::string(name_of(w.process())); }},
    WorkerColumn{"restarts", 10,
                 [](const WorkerStatus& w, double) {
                   return w.phases ? fmt::format("{}", w.phases->owner.restarts) : std::string("-");
                 }},
    WorkerColumn{"step", 3, [](const WorkerStatus& w, double) { return or_dash(w.step, "{}"); }},
    WorkerColumn{"joins", 11, [](const WorkerStatus& w, double) { return or_dash(w.joins, "{}"); }},
    WorkerColumn{"epoch", 8, [](const WorkerStatus& w, double) { return or_dash(w.epoch, "{:.2f}"); }},
    WorkerColumn{"loss", 6, [](const WorkerStatus& w, double) { return or_dash(w.loss, "{:.4f}"); }},
    WorkerColumn{"steps/s", 5,
                 [](const WorkerStatus& w, double) { return or_dash(per_second(w.step_seconds), "{:.3g}"); }},
    WorkerColumn{"waiting", 4,
                 [](const WorkerStatus& w, double) {
                   return or_dash(w.waiting_share ? std::optional(100 * *w.waiting_share) : std::nullopt,
                                  "{:.0f} %");
                 }},
    WorkerColumn{"MB sent", 9,
                 [](const WorkerStatus& w, double) {
                   const auto& sent = w.bytes_sent;
                   return or_dash(sent ? std::optional(static_cast<double>(*sent) / 1e6) : std::nullopt,
                                  "{:.1f}");
                 }},
    WorkerColumn{"phase", 2, [](const WorkerStatus& w, double now) {
                   return w.phase() == nullptr ? "-" : phase_text(w, now);
                 }}};

// ---------------------------------------------------------------- Prometheus

using Labels = std::vector<std::pair<std::string, std::string>>;

std::string label_value(const std::string& text) {
  std::string escaped;
  for (const char c : printable(text)) {
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

class Exposition {
 public:
  // A family of samples, left out if it has none.
  void add(const char* name, const char* type, const char* help,
           const std::vector<std::pair<Labels, std::optional<double>>>& samples) {
    std::string lines;
    for (const auto& [labels, value] : samples) {
      if (!value) continue;
      std::vector<std::string> pairs;
      for (const auto& [label, text] : labels)
        pairs.push_back(fmt::format("{}=\"{}\"", label, label_value(text)));
      const std::string braced = pairs.empty() ? "" : fmt::format("{{{}}}", fmt::join(pairs, ","));
      lines += fmt::format("starling_{}{} {}\n", name, braced, *value);
    }
    if (!lines.empty())
      text_ += fmt::format("# HELP starling_{0} {1}\n# TYPE starling_{0} {2}\n{3}", name, help, type, lines);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

void add_workers(const RunStatus& run, Exposition& to) {
  using Value = std::function<std::optional<double>(const WorkerStatus&)>;
  const auto add = [&](const char* name, const char* type, const char* help, const Value& value,
                       bool phase = false) {
    std::vector<std::pair<Labels, std::optional<double>>> samples;
    for (const WorkerStatus& w : run.workers) {
      Labels labels{{"rank", fmt::format("{}", w.rank)}, {"host", worker_host(w)}};
      if (phase && w.phase() != nullptr) labels.emplace_back("phase", w.phase()->name);
      samples.emplace_back(labels, value(w));
    }
    to.add(name, type, help, samples);
  };
  const auto figure = [](auto member) {
    return [member](const WorkerStatus& w) {
      return w.*member ? std::optional(static_cast<double>(*(w.*member))) : std::nullopt;
    };
  };
  add("worker_running", "gauge", "Whether the process of the worker lives.",
      [](const WorkerStatus& w) -> std::optional<double> {
        if (w.process() == WorkerPhases::Process::unknown) return std::nullopt;
        return w.process() == WorkerPhases::Process::running;
      });
  add("worker_late", "gauge", "Whether the worker is late in its phase.",
      [](const WorkerStatus& w) { return w.late; });
  add(
      "worker_phase_seconds", "gauge", "Seconds since the worker began its phase.",
      [&](const WorkerStatus& w) {
        return w.phase() == nullptr ? std::nullopt : std::optional(w.seconds_in_phase(run.now));
      },
      true);
  add("worker_restarts", "gauge", "How often the worker was started again.", [](const WorkerStatus& w) {
    return w.phases ? std::optional<double>(w.phases->owner.restarts) : std::nullopt;
  });
  add("worker_step", "gauge", "Step of the worker's latest line.", figure(&WorkerStatus::step));
  add("worker_epoch", "gauge", "Passes over the training data.", figure(&WorkerStatus::epoch));
  add("worker_loss", "gauge", "Training loss, mean since the line before.", figure(&WorkerStatus::loss));
  add("worker_steps_per_second", "gauge", "Rate of the worker's latest steps.",
      [](const WorkerStatus& w) { return per_second(w.step_seconds); });
  add("worker_waiting_ratio", "gauge", "Share of the time waiting for neighbours.",
      figure(&WorkerStatus::waiting_share));
  add("worker_sent_bytes_total", "counter", "Bytes sent.", figure(&WorkerStatus::bytes_sent));
  add("worker_aborted_blocks_total", "counter", "Exchanges of a block that were lost.",
      figure(&WorkerStatus::blocks_aborted));
  add("worker_jumped_blocks_total", "counter",
      "Those that this worker has refused, as their values had jumped.",
      figure(&WorkerStatus::blocks_jumped));
  add("worker_round", "gauge", "The last round that the worker has begun.", figure(&WorkerStatus::round));
  add("worker_membership_epoch", "gauge", "Number of the members' epoch that the worker is in.",
      figure(&WorkerStatus::membership));
  add("worker_joins_total", "counter", "How often the worker came into the run with another one's state.",
      figure(&WorkerStatus::joins));
  add("worker_gossip_rate", "gauge", "Averagings per gradient.", figure(&WorkerStatus::rate));
  add("worker_gossip_distance", "gauge", "RMS distance from the neighbours.",
      figure(&WorkerStatus::distance));
}

}  // namespace

std::span<const WorkerColumn> worker_columns() { return kWorkerColumns; }

std::vector<std::vector<std::string>> worker_rows(const std::vector<WorkerStatus>& workers, double now) {
  std::vector<std::vector<std::string>> rows(1);
  for (const WorkerColumn& column : kWorkerColumns) rows.front().emplace_back(column.header);
  for (const WorkerStatus& worker : workers) {
    auto& row = rows.emplace_back();
    for (const WorkerColumn& column : kWorkerColumns) row.push_back(column.cell(worker, now));
  }
  return rows;
}

std::string status_head(const RunStatus& run) {
  std::string text = fmt::format("run        {}", name_of(run.state));
  if (!run.scheme.empty())
    text += fmt::format(", {} over {}", printable(run.scheme), printable(run.topology));
  text += fmt::format(", {} worker{}, in {}\n", run.workers.size(), run.workers.size() == 1 ? "" : "s",
                      printable(run.folder));
  if (run.step) {
    text += fmt::format("progress   step {}, epoch {}, {} steps/s", *run.step, or_dash(run.epoch, "{:.2f}"),
                        or_dash(per_second(run.step_seconds), "{:.3g}"));
    if (run.round) text += fmt::format(", round {}", *run.round);
    if (run.membership.value_or(0) > 0) text += fmt::format(", membership {}", *run.membership);
    text += "\n";
  }
  if (run.test) {
    text += fmt::format("last test  {} {}, loss {}, consensus distance {}, after step {}\n",
                        printable(run.test->score_name), or_dash(run.test->score, "{:.4f}"),
                        or_dash(run.test->loss, "{:.4f}"), or_dash(run.test->consensus_distance, "{:.3g}"),
                        run.test->step);
  }
  return text;
}

std::string status_text(const RunStatus& run) {
  std::string text = status_head(run);
  for (const WorkerStatus& w : run.workers) {
    if (w.late)
      text += fmt::format("late       worker {} on {}: {}\n", w.rank, printable(worker_host(w)),
                          phase_text(w, run.now));
  }
  return text + "\n" + table_text(worker_rows(run.workers, run.now));
}

Json status_json(const RunStatus& run) {
  Json late = Json::array(), workers = Json::array();
  for (const WorkerStatus& w : run.workers) {
    if (w.late) late.push_back(w.rank);
    Json worker{{"rank", w.rank},
                {"host", w.phases ? Json(w.phases->host) : Json()},
                {"pid", w.phases ? Json(w.phases->pid) : Json()},
                {"process", name_of(w.process())},
                {"restarts", w.phases ? Json(w.phases->owner.restarts) : Json()},
                {"step", or_null(w.step)},
                {"epoch", or_null(w.epoch)},
                {"loss", or_null(w.loss)},
                {"steps_per_second", or_null(per_second(w.step_seconds))},
                {"waiting_share", or_null(w.waiting_share)},
                {"bytes_sent", or_null(w.bytes_sent)},
                {"blocks_aborted", or_null(w.blocks_aborted)},
                {"blocks_jumped", or_null(w.blocks_jumped)},
                {"round", or_null(w.round)},
                {"membership", or_null(w.membership)},
                {"joins", or_null(w.joins)},
                {"rate", or_null(w.rate)},
                {"distance", or_null(w.distance)},
                {"late", w.late},
                {"phase", nullptr}};
    if (const auto* const phase = w.phase())
      worker["phase"] = {
          {"name", phase->name}, {"step", phase->step}, {"seconds", w.seconds_in_phase(run.now)}};
    workers.push_back(worker);
  }
  Json test;
  if (run.test)
    test = {{"step", run.test->step},
            {"score_name", run.test->score_name},
            {"score", or_null(run.test->score)},
            {"loss", or_null(run.test->loss)},
            {"consensus_distance", or_null(run.test->consensus_distance)}};
  return {{"folder", run.folder},
          {"time", run.now},
          {"state", name_of(run.state)},
          {"scheme", run.scheme},
          {"topology", run.topology},
          {"step", or_null(run.step)},
          {"round", or_null(run.round)},
          {"membership", or_null(run.membership)},
          {"epoch", or_null(run.epoch)},
          {"seconds", or_null(run.seconds)},
          {"steps_per_second", or_null(per_second(run.step_seconds))},
          {"late", late},
          {"test", test},
          {"workers", workers}};
}

std::string status_prometheus(const RunStatus& run) {
  Exposition to;
  to.add("run_info", "gauge", "The run; always 1.",
         {{{{"folder", run.folder},
            {"state", name_of(run.state)},
            {"scheme", run.scheme},
            {"topology", run.topology}},
           1}});
  to.add("run_workers", "gauge", "Workers of the run.", {{{}, static_cast<double>(run.workers.size())}});
  if (run.test) {
    to.add("test_step", "gauge", "Step of the latest test of the average model.",
           {{{}, static_cast<double>(run.test->step)}});
    to.add("test_score", "gauge", "Score of the average model.",
           {{{{"score", run.test->score_name}}, run.test->score}});
    to.add("test_loss", "gauge", "Test loss of the average model.", {{{}, run.test->loss}});
    to.add("consensus_distance", "gauge", "RMS distance of the workers from their average.",
           {{{}, run.test->consensus_distance}});
  }
  add_workers(run, to);
  return to.text();
}

}  // namespace starling::cli
