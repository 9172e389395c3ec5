// A folder that only this user can enter (mode 0700), in the system's folder for temporary files.
#pragma once

#include <filesystem>

namespace starling {

// The destructor removes it with what is in it.
class PrivateFolder {
 public:
  PrivateFolder();  // throws Error
  ~PrivateFolder();
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// True if only this user can enter the folder, and it is no link.
bool is_private(const std::filesystem::path& folder);

}  // namespace starling
