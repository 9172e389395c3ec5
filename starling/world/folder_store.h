// The store of workers of one host: a folder that has a file for each key. A value is written to a
// file of its own, which is then renamed. So a process that is killed or stopped at any time harms
// no other, and nothing is ever locked.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "starling/world/store.h"

namespace starling {

class FolderStore final : public Store {
 public:
  // The folder exists. Anybody who can write there can disturb the workers.
  explicit FolderStore(std::filesystem::path folder) : folder_(std::move(folder)) {}
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
