#include "starling/checkpoint/checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include <fcntl.h>
#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/failpoint.h"
#include "starling/core/text.h"

namespace starling {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kManifest = "manifest.json";
constexpr std::string_view kLatest = "latest";
constexpr std::string_view kDraft = ".tmp", kReplaced = ".old";

std::string step_name(std::int64_t step) { return fmt::format("step-{}", step); }

// The step of "step-15"; nothing for any other name.
std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with("step-")) return std::nullopt;
  const auto step = parse_number<std::int64_t>(name.substr(5));
  return step && *step >= 0 && step_name(*step) == name ? step : std::nullopt;
}

[[noreturn]] void fail(const std::string& path, const char* what, const std::string& reason) {
  throw Error(fmt::format("{}: cannot be {}: {}", path, what, reason));
}

// The names in a folder.
std::vector<std::string> list(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    names.push_back(entry->path().filename());
  }
  if (error) fail(folder, "listed", error.message());
  return names;
}

void remove_all(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) fail(path, "removed", error.message());
}

void rename(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) fail(from, "put in place", std::strerror(errno));
}

// Exchanges them. Some file systems, such as NFS, cannot do so at once.
void exchange_folders(const std::string& draft, const std::string& place) {
  if (renameat2(AT_FDCWD, draft.c_str(), AT_FDCWD, place.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS) fail(draft, "put in place", std::strerror(errno));
  const std::string old = place + std::string(kReplaced);
  remove_all(old);
  rename(place, old);
  rename(draft, place);
  rename(old, draft);
}

std::string resolve(const std::string& path) {
  std::error_code error;
  if (fs::exists(fs::path(path) / kManifest, error)) return path;
  const std::string latest = fs::path(path) / kLatest;
  if (!fs::exists(latest, error)) {
    if (error) fail(latest, "read", error.message());
    throw Error(
        fmt::format("{}: there is no checkpoint: neither {} nor {} is there", path, kManifest, kLatest));
  }
  std::string name = read_text(latest, 64);
  if (!name.ends_with('\n') || !step_of(name.substr(0, name.size() - 1))) {
    refuse(latest, 0, "this is not the name of a checkpoint, such as step-15, with a newline");
  }
  name.pop_back();
  return fs::path(path) / name;
}

// Nothing if there is no checkpoint that can be read.
std::optional<Manifest> manifest_in(const std::string& folder) {
  try {
    return Checkpoint(folder).manifest();
  } catch (const Error&) {
    return {};
  }
}

bool is_whole(const std::string& folder) {
  const auto manifest = manifest_in(folder);
  if (!manifest || manifest->files.size() != static_cast<std::size_t>(manifest->workers)) return false;
  return std::ranges::all_of(manifest->files, [&](const WorkerFile& file) {
    std::error_code missing;
    return fs::file_size(fs::path(folder) / file.name(), missing) == file.digest.bytes && !missing;
  });
}

using Steps = std::map<std::int64_t, std::string>;  // the checkpoints' names
Steps steps_in(const std::string& root) {
  Steps steps;
  for (const std::string& name : list(root)) {
    if (const auto step = step_of(name)) steps[*step] = name;
  }
  return steps;
}

// The name of the newest one that all workers wrote; empty if there is none.
std::string newest_whole(const std::string& root, const Steps& steps) {
  const auto whole = std::find_if(steps.rbegin(), steps.rend(),
                                  [&](const auto& step) { return is_whole(fs::path(root) / step.second); });
  return whole == steps.rend() ? "" : whole->second;
}

}  // namespace

Checkpoint::Checkpoint(const std::string& path) : folder_(resolve(path)) {
  manifest_ = read_manifest(fs::path(folder_) / kManifest);
}

std::string Checkpoint::verified(int worker) const {
  const auto file = std::ranges::find(manifest_.files, worker, &WorkerFile::worker);
  if (file == manifest_.files.end()) {
    const fs::path parent = fs::path(folder_).parent_path(), root = parent.empty() ? fs::path(".") : parent;
    const std::string whole = newest_whole(root, steps_in(root));
    throw Error(fmt::format("{}: has no file of worker {}, which was lost when the checkpoint was written{}",
                            folder_, worker, whole.empty() ? "" : ": resume " + std::string(root / whole)));
  }
  const std::string path = fs::path(folder_) / file->name();
  const SafetensorsReader reader(path);
  const Digest digest = reader.digest();
  if (digest.bytes != file->digest.bytes) {
    refuse(path, std::min(digest.bytes, file->digest.bytes),
           fmt::format("the file has {} bytes, the manifest says {}", digest.bytes, file->digest.bytes));
  }
  if (digest != file->digest) {
    refuse(
        path, 0,
        fmt::format("damaged, or another worker's or step's file: its {} bytes have the checksum {:08x}, the "
                    "manifest says {:08x}",
                    digest.bytes, digest.crc32c, file->digest.crc32c));
  }
  return path;
}

void Checkpoint::verify_all() const {
  for (const WorkerFile& file : manifest_.files) verified(file.worker);
}

bool has_checkpoints(const std::string& root) {
  if (std::error_code error; !fs::exists(root, error) && !error) return false;
  return std::ranges::any_of(list(root), [](const auto& name) { return step_of(name).has_value(); });
}

std::string draft_folder(const std::string& root, std::int64_t step) {
  return fs::path(root) / (step_name(step) + std::string(kDraft));
}

std::string draft_checkpoint(const std::string& root, std::int64_t step) {
  const std::string draft = draft_folder(root, step);
  std::error_code error;
  fs::create_directories(draft, error);
  if (error) fail(draft, "made", error.message());
  return draft;
}

void drop_checkpoint(const std::string& root, std::int64_t step) noexcept {
  std::error_code ignored;
  fs::remove_all(draft_folder(root, step), ignored);
}

void commit_checkpoint(const std::string& root, const Manifest& manifest, int keep) {
  const std::string draft = draft_checkpoint(root, manifest.step);
  const std::string place = fs::path(root) / step_name(manifest.step);
  std::set<std::string> wanted;
  for (const WorkerFile& file : manifest.files) wanted.insert(file.name());
  for (const std::string& name : list(draft)) {  // of an earlier attempt that was killed
    if (!wanted.contains(name)) remove_all(fs::path(draft) / name);
  }
  write_text(fs::path(draft) / kManifest, to_json(manifest));
  sync_folder(draft);
  Checkpoint(draft).verify_all();
  std::error_code error;
  const bool replaces = fs::exists(place, error);
  if (error) fail(place, "read", error.message());
  const auto there = manifest_in(place);
  if (there && there->workers == manifest.workers && there->files.size() > manifest.files.size())
    throw Error(fmt::format("{}: it stays, with the files of {} workers, since the new one has only {}",
                            place, there->files.size(), manifest.files.size()));
  const auto latest = manifest_in(root);
  const bool whole = manifest.files.size() == static_cast<std::size_t>(manifest.workers);
  if (!whole && latest && latest->step > manifest.step)
    throw Error(fmt::format("{}: not kept: it has the files of only {} of {} workers, and {} is the latest",
                            place, manifest.files.size(), manifest.workers, step_name(latest->step)));
  failpoint("checkpoint-rename");
  replaces ? exchange_folders(draft, place) : rename(draft, place);
  sync_folder(root);
  failpoint("checkpoint-latest");
  write_text(fs::path(root) / kLatest, step_name(manifest.step) + "\n");
  sync_folder(root);

  // Removes replaced checkpoints and the remains of attempts that were killed.
  for (const std::string& name : list(root)) {
    const auto step = step_of(std::string_view(name).substr(0, name.rfind('.')));
    if ((name.ends_with(kDraft) || name.ends_with(kReplaced)) && step && *step <= manifest.step)
      remove_all(fs::path(root) / name);
  }
  Steps steps = steps_in(root);
  steps.erase(steps.upper_bound(manifest.step), steps.end());
  const std::string stays = newest_whole(root, steps);
  for (; steps.size() > static_cast<std::size_t>(keep); steps.erase(steps.begin())) {
    if (steps.begin()->second == stays) continue;
    const std::string old = fs::path(root) / steps.begin()->second;
    rename(old, old + std::string(kDraft));  // a checkpoint is complete or absent
    remove_all(old + std::string(kDraft));
  }
}

}  // namespace starling
