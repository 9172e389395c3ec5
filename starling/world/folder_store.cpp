#include "starling/world/folder_store.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "starling/core/descriptor.h"
#include "starling/core/random.h"
#include "starling/core/text.h"

namespace starling {
namespace {

constexpr std::int64_t kMost = 1 << 20;  // bytes of a value

[[noreturn]] void lost(const char* verb, const std::string& key, const std::string& why) {
  throw StoreLost(fmt::format("store: cannot {} the key '{}': {}", verb, key, why));
}

// False: errno says why.
bool write_all(int file, const std::string& value) {
  for (std::size_t done = 0; done < value.size();) {
    const ssize_t wrote = write(file, value.data() + done, value.size() - done);
    if (wrote < 0 && errno != EINTR) return false;
    done += static_cast<std::size_t>(std::max<ssize_t>(wrote, 0));
  }
  return true;
}

std::string read_all(int file, const std::string& key) {
  struct stat there{};
  if (fstat(file, &there) != 0) lost("get", key, std::strerror(errno));
  if (there.st_size > kMost) lost("get", key, fmt::format("its file has {} bytes", there.st_size));
  std::string value(static_cast<std::size_t>(there.st_size), '\0');
  for (std::size_t done = 0; done < value.size();) {
    const ssize_t got = read(file, value.data() + done, value.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) lost("get", key, got < 0 ? std::strerror(errno) : "its file was cut");
    done += static_cast<std::size_t>(got);
  }
  return value;
}

}  // namespace

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

FolderStore::FolderStore(std::filesystem::path folder) : folder_(std::move(folder)) {}

// Letters, digits and dashes stand for themselves.
std::filesystem::path FolderStore::file_of(const std::string& key) const {
  std::string name = "key.";
  for (const char c : key) {
    const bool is_plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
    name += is_plain ? std::string(1, c) : fmt::format("%{:02x}", static_cast<unsigned char>(c));
  }
  return folder_ / name;
}

void FolderStore::set(const std::string& key, const std::string& value) {
  const std::filesystem::path written = folder_ / fmt::format("new.{}", new_id());
  const Descriptor file(open(written.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (file.get() < 0)
    lost("set", key, fmt::format("{}: {}", in_quotes(written.string()), std::strerror(errno)));
  if (write_all(file.get(), value) && rename(written.c_str(), file_of(key).c_str()) == 0) return;
  const int why = errno;
  unlink(written.c_str());
  lost("set", key, std::strerror(why));
}

std::optional<std::string> FolderStore::look(const std::string& key) {
  const Descriptor file(open(file_of(key).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (file.get() >= 0) return read_all(file.get(), key);
  const int why = errno;
  if (why == ENOENT && std::filesystem::exists(folder_)) return std::nullopt;
  lost(
      "get", key,
      why == ENOENT ? fmt::format("the folder {} is gone", in_quotes(folder_.string())) : std::strerror(why));
}

std::string FolderStore::get(const std::string& key, std::chrono::milliseconds deadline,
                             const Interrupted& interrupted) {
  return get_by_asking(key, deadline, interrupted, fmt::format("the folder {}", in_quotes(folder_.string())),
                       [&](Duration) { return look(key); });
}

}  // namespace starling
