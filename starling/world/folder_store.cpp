#include "starling/world/folder_store.h"

#include <exception>
#include <span>
#include <system_error>

#include <fmt/format.h>

#include "starling/core/file.h"
#include "starling/core/random.h"
#include "starling/core/text.h"

namespace starling {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMost = 1 << 20;  // bytes of a value

[[noreturn]] void lost(const char* verb, const std::string& key, const std::string& why) {
  throw StoreLost(fmt::format("store: cannot {} the key '{}': {}", verb, key, why));
}

}  // namespace

// Letters, digits and dashes stand for themselves.
fs::path FolderStore::file_of(const std::string& key) const {
  std::string name = "key.";
  for (const char c : key) {
    const bool is_plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
    name += is_plain ? std::string(1, c) : fmt::format("%{:02x}", static_cast<unsigned char>(c));
  }
  return folder_ / name;
}

void FolderStore::set(const std::string& key, const std::string& value) {
  const fs::path draft = folder_ / fmt::format("new.{}", new_id());
  try {
    File::to_write(draft, 0600).write(std::as_bytes(std::span(value)));
    fs::rename(draft, file_of(key));
  } catch (const std::exception& failure) {
    std::error_code none;
    fs::remove(draft, none);
    lost("set", key, failure.what());
  }
}

// A key's file stays once it is there.
std::optional<std::string> FolderStore::look(const std::string& key) {
  try {
    const fs::path file = file_of(key);
    if (fs::exists(file)) return read_text(file, kMost);
    if (fs::exists(folder_)) return std::nullopt;
  } catch (const std::exception& failure) {
    lost("get", key, failure.what());
  }
  lost("get", key, fmt::format("the folder {} is gone", in_quotes(folder_.string())));
}

std::string FolderStore::get(const std::string& key, std::chrono::milliseconds deadline,
                             const Interrupted& interrupted) {
  return get_by_asking(key, deadline, interrupted, fmt::format("the folder {}", in_quotes(folder_.string())),
                       [&](Duration) { return look(key); });
}

}  // namespace starling
