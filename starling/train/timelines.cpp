#include "starling/train/timelines.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include <fmt/format.h>
#include <unistd.h>

#include "starling/core/error.h"
#include "starling/core/timeline.h"

namespace starling {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr std::int64_t kMostWorkers = 1 << 20;
constexpr std::int64_t kLatestStart = 4'000'000'000'000'000'000;  // ns: in 2096
constexpr std::int64_t kMostDropped = 1'000'000'000'000;
constexpr int kDepth = 8;  // of a line's JSON

// Discarded if the text is no JSON, or is nested too deeply.
Json parsed(const std::string& text) {
  bool deep = false;
  Json json = Json::parse(
      text,
      [&](int depth, Json::parse_event_t, const Json&) {
        deep = deep || depth > kDepth;
        return !deep;
      },
      false);
  return deep ? Json(Json::value_t::discarded) : json;
}

// R of timeline-R.json.
std::optional<int> rank_in(const std::string& name) {
  int rank = 0;
  if (std::sscanf(name.c_str(), "timeline-%9d.json", &rank) != 1) return std::nullopt;
  if (rank < 0 || name != fmt::format("timeline-{}.json", rank)) return std::nullopt;
  return rank;
}

// One worker's file, line by line.
class Source {
 public:
  Source(std::string path, int rank) : path_(std::move(path)), rank_(rank), file_(path_, std::ios::binary) {
    if (!file_) throw UsageError(fmt::format("{}: cannot be read: {}", path_, std::strerror(errno)));
    const Json head = parsed(next_line() + "]}");
    const Json about = head.is_object() ? head.value("otherData", Json()) : Json();
    if (!about.is_object() || about.value("format", Json()) != Timeline::kFormat)
      refuse("is no timeline of Starling");
    const auto number = [&](const char* key, std::int64_t least, std::int64_t most) {
      const Json value = about.value(key, Json());
      if (!value.is_number_integer() || value < least || value > most)
        refuse(fmt::format("its {} is no number from {} to {}", key, least, most));
      return value.get<std::int64_t>();
    };
    workers = number("workers", 1, kMostWorkers);
    start = number("start_unix_ns", 0, kLatestStart);
    dropped = number("dropped", 0, kMostDropped);
    const std::int64_t own = number("rank", 0, kMostWorkers - 1);
    if (own != rank) refuse(fmt::format("is of worker {}, not of the one in its name", own));
  }

  // The next event of this worker, or nothing at the end.
  std::optional<Json> next() {
    const std::string line = next_line();
    if (!more_) {
      if (line != "]}") refuse("a comma is missing at the end of the line before");
      if (file_.peek() != std::ifstream::traits_type::eof()) refuse("something follows the end");
      return std::nullopt;
    }
    more_ = line.ends_with(',');
    Json event = parsed(line.substr(0, line.size() - (more_ ? 1 : 0)));
    const bool whole =
        event.is_object() && event.value("pid", Json()) == rank_ &&
        (event.value("ph", Json()) == "M" ||
         (is_time(event, "ts") && (event.value("ph", Json()) == "C" || is_time(event, "dur"))));
    if (!whole) refuse(fmt::format("is no event of worker {}", rank_));
    return event;
  }

  [[noreturn]] void refuse(const std::string& why) const {
    throw UsageError(fmt::format("{}:{}: {}", path_, line_, why));
  }

  std::int64_t workers = 0;
  std::int64_t start = 0;  // Unix time, ns
  std::int64_t dropped = 0;

 private:
  std::string next_line() {
    std::string line;
    ++line_;
    if (!std::getline(file_, line) || file_.eof()) refuse("is cut off: the file has no end");
    return line;
  }
  static bool is_time(const Json& event, const char* key) {
    const Json value = event.value(key, Json());
    return value.is_number() && value >= 0 && value < 1e15;
  }

  const std::string path_;
  const int rank_;
  std::ifstream file_;
  std::int64_t line_ = 0;
  bool more_ = true;  // events follow
};

// A file that gets its name when it is complete.
class Draft {
 public:
  // Throws Error if it cannot be made.
  explicit Draft(std::string path)
      : path_(std::move(path)),
        draft_(fmt::format("{}.{}", path_, getpid())),
        file_(draft_, std::ios::binary) {
    if (!file_) fail();
  }
  ~Draft() { std::remove(draft_.c_str()); }
  std::ostream& stream() { return file_; }
  void finish() {
    file_.close();
    if (!file_ || std::rename(draft_.c_str(), path_.c_str()) != 0) fail();
  }

 private:
  [[noreturn]] void fail() const {
    throw Error(fmt::format("{}: cannot be written: {}", path_, std::strerror(errno)));
  }
  const std::string path_;
  const std::string draft_;
  std::ofstream file_;
};

std::map<int, Source> open_sources(const std::string& folder) {
  std::error_code error;
  std::map<int, Source> sources;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (const auto rank = rank_in(entry.path().filename())) {
      sources.try_emplace(*rank, entry.path().string(), *rank);
    }
  }
  if (error) throw UsageError(fmt::format("{}: cannot be read: {}", folder, error.message()));
  if (sources.empty()) {
    throw UsageError(fmt::format(
        "{}: there is no timeline-R.json: a run with log.timeline = true leaves one per worker", folder));
  }
  for (const auto& [rank, source] : sources) {
    const std::int64_t workers = sources.begin()->second.workers;
    if (source.workers != workers || rank >= workers) {
      source.refuse(fmt::format("is of another run than timeline-{}.json, which has {} workers",
                                sources.begin()->first, workers));
    }
  }
  return sources;
}

}  // namespace

MergedTimeline merge_timelines(const std::string& folder, const std::string& out) {
  std::map<int, Source> sources = open_sources(folder);
  MergedTimeline merged;
  merged.workers = static_cast<int>(sources.begin()->second.workers);
  std::int64_t start = sources.begin()->second.start;
  for (const auto& [rank, source] : sources) start = std::min(start, source.start);

  Draft draft(out);
  draft.stream() << R"({"displayTimeUnit":"ms","traceEvents":[)";
  const char* comma = "\n";
  for (int rank = 0; rank < merged.workers; ++rank) {
    const auto found = sources.find(rank);
    if (found == sources.end()) {
      merged.missing.push_back(rank);
      continue;
    }
    Source& source = found->second;
    while (auto event = source.next()) {
      if (event->contains("ts")) {
        const std::int64_t ns = std::llround((*event)["ts"].get<double>() * 1e3) + source.start - start;
        (*event)["ts"] = static_cast<double>(ns) / 1e3;
        merged.spans += event->contains("dur") ? 1 : 0;
      }
      draft.stream() << comma << event->dump();
      comma = ",\n";
    }
    merged.dropped += source.dropped;
  }
  draft.stream() << "\n]}\n";
  draft.finish();
  return merged;
}

}  // namespace starling
