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

std::string MemoryStore::get(const std::string& key, std::chrono::milliseconds deadline) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, deadline, [&] { return values_.contains(key); })) {
    throw Error(fmt::format("store: nobody has set the key '{}' within {} ms", key, deadline.count()));
  }
  return values_.at(key);
}

}  // namespace starling
