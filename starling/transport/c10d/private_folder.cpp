#include "starling/transport/c10d/private_folder.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "starling/core/error.h"

namespace starling {

PrivateFolder::PrivateFolder() {
  std::string path = std::filesystem::temp_directory_path() / "starling-XXXXXX";
  if (mkdtemp(path.data()) == nullptr)
    throw Error(fmt::format("{}: no folder for this run's store or token: {}", path, std::strerror(errno)));
  path_ = path;
}

bool is_private(const std::filesystem::path& folder) {
  struct stat status{};
  return lstat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == geteuid() &&
         (status.st_mode & (S_IRWXG | S_IRWXO)) == 0;
}

PrivateFolder::~PrivateFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace starling
