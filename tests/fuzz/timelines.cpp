// The timelines of two workers: the input up to a zero byte, and the rest.
#include "starling/train/timelines.h"

#include "tests/folder.h"
#include "tests/fuzz/target.h"

void starling::fuzz::read(std::string_view bytes) {
  const Folder folder;
  const std::size_t zero = std::min(bytes.find('\0'), bytes.size());
  spill(folder / "timeline-0.json", std::string(bytes.substr(0, zero)));
  if (zero < bytes.size()) spill(folder / "timeline-1.json", std::string(bytes.substr(zero + 1)));
  accepted([&] { merge_timelines(folder.path, folder / "timeline.json"); });
}
