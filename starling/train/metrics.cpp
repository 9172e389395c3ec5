#include "starling/train/metrics.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <torch/version.h>
#include <unistd.h>

#include "starling/core/descriptor.h"
#include "starling/core/error.h"
#include "starling/core/file.h"
#include "starling/core/random.h"
#include "starling/core/text.h"

namespace starling {

namespace {

constexpr const char* kResumed = "resumed.json";

using Json = nlohmann::ordered_json;

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw Error(fmt::format("{}: cannot be {}: {}", path, what, std::strerror(errno)));
}

// To a file that has one writer: all of the lines, or none and a warning.
void append_to(const std::string& path, std::string_view lines, const Log& log) {
  const Descriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  const off_t before = file.get() < 0 ? 0 : lseek(file.get(), 0, SEEK_END);
  if (file.get() >= 0 && write_once(file.get(), lines) == lines.size()) return;
  const int why = errno;
  const bool half = file.get() >= 0 && ftruncate(file.get(), before) != 0;
  log(Level::warning, fmt::format("{}: cannot be written: {}{}", path, std::strerror(why),
                                  half ? ", and its last line is cut off" : ""));
}

// Names of files need not be UTF-8.
std::string line_of(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace) + "\n";
}

// Removes the files whose name begins so. A missing folder is no error.
void remove_files(const std::filesystem::path& folder, std::string_view begin) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (!entry.path().filename().string().starts_with(begin) || !entry.is_regular_file(error)) continue;
    std::filesystem::remove(entry.path(), error);
    if (error) throw Error(fmt::format("{}: cannot be removed: {}", entry.path().string(), error.message()));
  }
}

// Makes the folder, too.
LinesFile lines_in(const std::string& folder, const Log& log) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw Error(fmt::format("{}: cannot be made: {}", folder, error.message()));
  return {folder + "/metrics.jsonl", log};
}

}  // namespace

std::string to_json(const Summary& s) {
  Json json{{"scheme", s.scheme},
            {"schedule", s.schedule},
            {"rule", s.rule},
            {"wire", s.wire},
            {"one_in", s.one_in},
            {"workers", s.workers},
            {"workers_lost", s.workers_lost},
            {"steps", s.steps},
            {"samples", s.samples},
            {"seconds", s.seconds},
            {"loss", s.loss},
            {"test_loss", s.test_loss},
            {s.score_name, s.score}};
  if (s.worst_score) json["worst_" + s.score_name] = *s.worst_score;
  json.update({{"consensus_distance", s.consensus_distance},
               {"bytes_sent_per_worker", s.bytes_sent_per_worker},
               {"payload_sent_per_worker", s.payload_sent_per_worker},
               {"bytes_computed", s.bytes_computed},
               {"waiting_share", s.waiting_share},
               {"blocks_aborted", s.blocks_aborted},
               {"blocks_jumped", s.blocks_jumped},
               {"directed_aborted", s.directed_aborted},
               {"questions_unanswered", s.questions_unanswered},
               {"steps_skipped", s.steps_skipped},
               {"seed", s.seed},
               {"versions", {{"starling", STARLING_VERSION}, {"torch", TORCH_VERSION}}}});
  std::string text = line_of(json, 2);
  if (s.class_counts.empty()) return text;
  // A worker a line.
  std::vector<std::string> rows;
  for (const auto& counts : s.class_counts) rows.push_back(fmt::format("    [{}]", fmt::join(counts, ", ")));
  text.resize(text.size() - std::string_view("\n}\n").size());
  return text + fmt::format(",\n  \"class_counts\": [\n{}\n  ]\n}}\n", fmt::join(rows, ",\n"));
}

Metrics::Metrics(std::string folder, Log log)
    : folder_(std::move(folder)),
      tests_(folder_ + "/tests.jsonl"),
      log_(std::move(log)),
      lines_(lines_in(folder_, log_)) {}

void Metrics::clear_after(std::span<const std::int64_t> steps) {
  // Hosts that share the folder do it one after the other, for none to read what another one moves.
  const Descriptor lock(open(lines_.path().c_str(), O_RDWR | O_CLOEXEC));  // NFS locks no others
  flock(lock.get(), LOCK_EX);
  const std::string tests = lines_up_to(tests_, steps, log_);
  lines_.keep(lines_up_to(lines_.path(), steps, log_));
  if (!tests.empty()) LinesFile(tests_, log_).keep(tests);
  std::vector<std::string> gone;
  for (const char* name :
       {"recipe.toml", kResumed, "summary.json", "simulate.jsonl", "cluster.json", "simulate.svg"})
    gone.push_back(folder_ + "/" + name);
  if (tests.empty()) gone.push_back(tests_);
  for (const std::string& path : gone) {
    if (unlink(path.c_str()) != 0 && errno != ENOENT) fail(path, "removed");
  }
  remove_files(folder_, "timeline-");
  std::error_code none;
  for (const auto& worker : std::filesystem::directory_iterator(folder_ + "/tensorboard", none)) {
    remove_files(worker.path(), "events.out.tfevents.");
  }
}

void Metrics::write(const StepRecord& r) {
  Json json{{"rank", r.rank},
            {"step", r.step},
            {"epoch", r.epoch},
            {"samples", r.samples},
            {"seconds", r.seconds},
            {"loss", r.loss},
            {"lr", r.lr},
            {"waiting_share", r.waiting_share},
            {"bytes_sent", r.bytes_sent},
            {"round", r.round},
            {"membership", r.membership},
            {"joins", r.joins},
            {"blocks_aborted", r.blocks_aborted},
            {"mixed", Json::array()},
            {"blocks_jumped", r.blocks_jumped}};
  for (const auto& [rank, blocks] : r.mixed) json["mixed"].push_back({{"rank", rank}, {"blocks", blocks}});
  if (r.gossip) {
    json["rate"] = r.gossip->rate;
    json["distance"] = r.gossip->distance;
    json["edges"] = Json::array();
    for (const Statistics::Edge& e : r.gossip->edges)
      json["edges"].push_back({{"rank", e.rank},
                               {"averaged", e.averaged},
                               {"gap", e.gap},
                               {"longest_gap", e.longest_gap},
                               {"distance", e.distance}});
    const Statistics::Questions& q = r.gossip->questions;
    json["questions"] = {
        {"asked", q.asked}, {"refused", q.refused}, {"unanswered", q.unanswered}, {"dropped", q.dropped}};
  }
  lines_.append(line_of(json));
}

void Metrics::write_chosen(const std::string& topology, const std::string& why) {
  const Json json{{"step", 0}, {"topology", topology}, {"why", why}};
  lines_.append(line_of(json));
}

void Metrics::write_test(const TestRecord& r) {
  append_to(tests_,
            line_of({{"step", r.step},
                     {"seconds", r.seconds},
                     {"test_loss", r.test_loss},
                     {r.score_name, r.score},
                     {"consensus_distance", r.consensus_distance}}),
            log_);
}

void Metrics::write_recipe(const std::string& toml) { write_whole("recipe.toml", toml); }

void Metrics::write_resumed(const Manifest& checkpoint) { write_whole(kResumed, to_json(checkpoint)); }

Manifest Metrics::resumed(const std::string& folder) { return read_manifest(folder + "/" + kResumed); }

void Metrics::write(const Summary& summary) { write_whole("summary.json", to_json(summary)); }

// Under another name first, so that nobody sees half of it. Several workers may write one file.
void Metrics::write_whole(const std::string& name, const std::string& text) {
  const std::string path = folder_ + "/" + name;
  const std::string draft = fmt::format("{}.{}", path, new_id());
  const Descriptor file(open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  const bool is_whole = file.get() >= 0 && write_once(file.get(), text) == text.size();
  if (is_whole && std::rename(draft.c_str(), path.c_str()) == 0) return;
  log_(Level::warning, fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
  std::remove(draft.c_str());
}

}  // namespace starling
