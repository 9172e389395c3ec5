#include "starling/train/lines_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "starling/core/error.h"

namespace starling {
namespace {

// The bytes that `write` has written: fewer on a full disk, with the reason in errno.
template <class Write>
std::size_t written_by(std::size_t wanted, const Write& write) {
  ssize_t written = 0;
  do {
    written = write();
  } while (written < 0 && errno == EINTR);
  if (written >= 0 && written < static_cast<ssize_t>(wanted)) errno = ENOSPC;
  return static_cast<std::size_t>(std::max<ssize_t>(written, 0));
}

}  // namespace

LinesFile::LinesFile(std::string path, Log log)
    : path_(std::move(path)),
      log_(std::move(log)),
      file_(open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) {
  if (file_.get() < 0) throw Error(fmt::format("{}: cannot be opened: {}", path_, std::strerror(errno)));
}

void LinesFile::append(std::string_view lines) {
  const std::string text = fmt::format("{}{}", cut_off_ ? "\n" : "", lines);
  const std::size_t written =
      written_by(text.size(), [&] { return write(file_.get(), text.data(), text.size()); });
  const bool whole = written == text.size();
  if (!whole && !failing_) {
    log_(Level::warning,
         fmt::format("{}: cannot be written: {}: lines are missing from here on, the run goes on", path_,
                     std::strerror(errno)));
  }
  if (written > 0) cut_off_ = !whole;
  failing_ = !whole;
}

void LinesFile::keep(std::string_view lines) {
  const Descriptor file(open(path_.c_str(), O_WRONLY | O_CLOEXEC));  // one to append ignores places
  std::size_t written = 0;
  bool failed = file.get() < 0;
  while (!failed && written < lines.size()) {
    const std::string_view rest = lines.substr(written);
    const std::size_t more = written_by(
        1, [&] { return pwrite(file.get(), rest.data(), rest.size(), static_cast<off_t>(written)); });
    failed = more == 0;
    written += more;
  }
  if (failed || ftruncate(file.get(), static_cast<off_t>(written)) != 0)
    log_(Level::warning, fmt::format("{}: cannot be written: {}: lines of the earlier run stay", path_,
                                     std::strerror(errno)));
}

}  // namespace starling
