#include "starling/world/store.h"

#include <fmt/format.h>

#include "starling/core/error.h"

namespace starling {

void MemoryStore::set(const std::string& key, const std::string& value) {
  {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
  }
  changed_.notify_all();
}

std::optional<std::string> MemoryStore::look(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = values_.find(key);
  return found == values_.end() ? std::nullopt : std::optional(found->second);
}

std::string MemoryStore::get(const std::string& key, std::chrono::milliseconds deadline,
                             const Interrupted& interrupted) {
  std::unique_lock lock(mutex_);
  bool stop = false;
  const auto asked = [&] { return stop = interrupted(); };
  if (!wait(changed_, lock, &Clock::now, deadline, asked, [&] { return values_.contains(key); })) {
    if (stop) throw Error(fmt::format("store: interrupted while nobody had set the key '{}'", key));
    throw Error(fmt::format("store: nobody has set the key '{}' within {} ms", key, deadline.count()));
  }
  return values_.at(key);
}

}  // namespace starling
