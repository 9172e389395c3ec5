#include "starling/train/metrics.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include <fcntl.h>
#include <fmt/format.h>
#include <torch/version.h>
#include <unistd.h>

#include "starling/core/error.h"

namespace starling {

namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw Error(fmt::format("{}: cannot be {}: {}", path, what, std::strerror(errno)));
}

int open_to_append(const std::string& path) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) fail(path, "opened");
  return file;
}

void write_whole(int file, const std::string& path, const std::string& text) {
  ssize_t written = 0;
  do {
    written = ::write(file, text.data(), text.size());
  } while (written < 0 && errno == EINTR);
  if (written >= 0 && written < static_cast<ssize_t>(text.size())) errno = ENOSPC;
  if (written < static_cast<ssize_t>(text.size())) fail(path, "written");
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

}  // namespace

std::string to_json(const Summary& s) {
  const Json json{{"scheme", s.scheme},
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
                  {s.score_name, s.score},
                  {"worst_" + s.score_name, s.worst_score},
                  {"consensus_distance", s.consensus_distance},
                  {"bytes_sent_per_worker", s.bytes_sent_per_worker},
                  {"bytes_computed", s.bytes_computed},
                  {"waiting_share", s.waiting_share},
                  {"blocks_aborted", s.blocks_aborted},
                  {"directed_aborted", s.directed_aborted},
                  {"questions_unanswered", s.questions_unanswered},
                  {"steps_skipped", s.steps_skipped},
                  {"seed", s.seed},
                  {"versions", {{"starling", STARLING_VERSION}, {"torch", TORCH_VERSION}}}};
  return json.dump(2) + "\n";
}

Metrics::Metrics(std::string folder) : folder_(std::move(folder)) {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) throw Error(fmt::format("{}: cannot be made: {}", folder_, error.message()));
  file_ = open_to_append(folder_ + "/metrics.jsonl");
}

Metrics::~Metrics() { close(file_); }

void Metrics::clear() {
  if (ftruncate(file_, 0) != 0) fail(folder_ + "/metrics.jsonl", "emptied");
  const std::string summary = folder_ + "/summary.json";
  if (unlink(summary.c_str()) != 0 && errno != ENOENT) fail(summary, "removed");
  remove_files(folder_, "timeline-");
  std::error_code none;
  for (const auto& worker : std::filesystem::directory_iterator(folder_ + "/tensorboard", none)) {
    remove_files(worker.path(), "events.out.tfevents.");
  }
}

void Metrics::clear_after(std::span<const std::int64_t> steps) {
  const std::string path = folder_ + "/metrics.jsonl";
  std::ifstream file(path);
  std::string kept, line;
  while (std::getline(file, line)) {
    const Json record = Json::parse(line, nullptr, false);
    if (!record.is_object()) continue;
    const auto rank = record.value("rank", std::size_t{0});
    if (rank < steps.size() && record.value("step", steps[rank] + 1) <= steps[rank]) kept += line + "\n";
  }
  clear();
  if (!kept.empty()) write_whole(file_, path, kept);
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
            {"bytes_sent", r.bytes_sent}};
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
  write_whole(file_, folder_ + "/metrics.jsonl", json.dump() + "\n");
}

void Metrics::write_chosen(const std::string& topology, const std::string& why) {
  const Json json{{"step", 0}, {"topology", topology}, {"why", why}};
  write_whole(file_, folder_ + "/metrics.jsonl", json.dump() + "\n");
}

void Metrics::write(const Summary& summary) {
  const std::string path = folder_ + "/summary.json";
  const std::string draft = fmt::format("{}.{}", path, getpid());
  const int file = open_to_append(draft);
  write_whole(file, draft, to_json(summary));
  close(file);
  if (std::rename(draft.c_str(), path.c_str()) != 0) fail(path, "written");
}

}  // namespace starling
