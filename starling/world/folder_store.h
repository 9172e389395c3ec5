// The store of workers of one host: a folder that has a file for each key. A value is written to a
// file of its own, which is then renamed. So a process that is killed or stopped at any time harms
// no other, and nothing is ever locked.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "starling/core/clock.h"
#include "starling/world/store.h"

namespace starling {

// Store::get() for a store that can only be asked: asks again and again. Errors name the `place`.
std::string get_by_asking(const std::string& key, std::chrono::milliseconds deadline,
                          const Interrupted& interrupted, const std::string& place,
                          const std::function<std::optional<std::string>(Duration left)>& look);

class FolderStore final : public Store {
 public:
  // The folder exists. Whoever can write there can disturb the workers.
  explicit FolderStore(std::filesystem::path folder);
  const std::filesystem::path& folder() const { return folder_; }

  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> look(const std::string& key) override;
  std::string get(const std::string& key, std::chrono::milliseconds deadline,
                  const Interrupted& interrupted = nobody) override;

 private:
  std::filesystem::path file_of(const std::string& key) const;

  const std::filesystem::path folder_;
};

}  // namespace starling
