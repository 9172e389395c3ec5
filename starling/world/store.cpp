#include "starling/world/store.h"

#include <algorithm>
#include <thread>

#include <fmt/format.h>

#include "starling/core/with_lock.h"

namespace starling {

std::string get_by_asking(const std::string& key, std::chrono::milliseconds deadline,
                          const Interrupted& interrupted, const std::string& place,
                          const std::function<std::optional<std::string>(Duration left)>& look) {
  const Time end = Clock::now() + deadline;
  Duration pause = std::chrono::milliseconds(1);
  for (;;) {
    if (const auto value = look(end - Clock::now())) return *value;
    const Duration left = end - Clock::now();
    if (left <= Duration::zero()) {
      throw Error(fmt::format(
          "store: nobody has set the key '{}' within {:g} s in {}: check that all workers were started "
          "and that none of them has ended",
          key, seconds(deadline), place));
    }
    if (interrupted()) throw Error(fmt::format("store: interrupted while nobody had set the key '{}'", key));
    std::this_thread::sleep_for(std::min(pause, left));
    pause = std::min<Duration>(2 * pause, std::chrono::milliseconds(50));
  }
}

void MemoryStore::set(const std::string& key, const std::string& value) {
  with_lock(mutex_, [&] { values_[key] = value; });
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
