#include "starling/train/lines_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "starling/core/error.h"
#include "starling/core/file.h"
#include "starling/core/text.h"

namespace starling {
namespace {

using Json = nlohmann::ordered_json;

std::optional<std::int64_t> whole_of(const Json& record, const char* key, std::int64_t otherwise) {
  const auto found = record.find(key);
  if (found == record.end()) return otherwise;
  if (!found->is_number_integer()) return std::nullopt;
  return found->get<std::int64_t>();
}

}  // namespace

LinesFile::LinesFile(std::string path, Log log)
    : path_(std::move(path)),
      log_(std::move(log)),
      file_(open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) {
  if (file_.get() < 0) throw Error(fmt::format("{}: cannot be opened: {}", path_, std::strerror(errno)));
}

void LinesFile::append(std::string_view lines) {
  const std::string text = fmt::format("{}{}", cut_off_ ? "\n" : "", lines);
  const std::size_t written = write_once(file_.get(), text);
  const bool whole = written == text.size();
  if (!whole && !failing_) {
    log_(Level::warning,
         fmt::format("{}: cannot be written: {}: lines are missing from here on, the run goes on", path_,
                     std::strerror(errno)));
  }
  if (written > 0) cut_off_ = !whole;
  failing_ = !whole;
}

void LinesFile::keep(std::string_view lines) {
  const Descriptor file(open(path_.c_str(), O_WRONLY | O_CLOEXEC));  // one to append ignores places
  std::size_t written = 0;
  bool failed = file.get() < 0;
  while (!failed && written < lines.size()) {
    const std::size_t more = write_once(file.get(), lines.substr(written), static_cast<off_t>(written));
    failed = more == 0;
    written += more;
  }
  if (failed || ftruncate(file.get(), static_cast<off_t>(written)) != 0)
    log_(Level::warning, fmt::format("{}: cannot be written: {}: lines of the earlier run stay", path_,
                                     std::strerror(errno)));
}

std::string lines_up_to(const std::string& path, std::span<const std::int64_t> steps, const Log& log) {
  std::ifstream file(path);
  std::string kept, line;
  for (int number = 1; std::getline(file, line); ++number) {
    const Json record = Json::parse(line, nullptr, false);
    std::optional<std::int64_t> rank, step;
    if (record.is_object()) {
      rank = whole_of(record, "rank", 0);
      step = whole_of(record, "step", std::numeric_limits<std::int64_t>::max());
    }
    if (!rank || !step) {
      log(Level::warning, place(path, number) + ": is no line of a run, and is dropped");
      continue;
    }
    if (*rank < 0 || *rank >= std::ssize(steps)) continue;
    if (*step <= steps[static_cast<std::size_t>(*rank)]) kept += line + "\n";
  }
  return kept;
}

double latest_seconds(const std::string& path) {
  constexpr std::streamoff kEnd = 1 << 20;  // bytes; cut, its first line is none
  std::ifstream file(path, std::ios::ate);
  file.seekg(std::max<std::streamoff>(0, file.tellg() - kEnd));
  double latest = 0;
  for (std::string line; std::getline(file, line);) {
    const Json record = Json::parse(line, nullptr, false);
    if (!record.is_object()) continue;
    if (const auto said = record.find("seconds"); said != record.end() && said->is_number())
      latest = std::max(latest, said->get<double>());
  }
  return latest;
}

}  // namespace starling
