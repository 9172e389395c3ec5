// The timelines of two workers: the input up to a zero byte, and the rest.
#include "starling/train/timelines.h"

#include "tests/fuzz/target.h"

void starling::fuzz::read(std::string_view bytes) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("starling-fuzz-" + std::to_string(getpid()));
  fs::create_directory(folder);
  const std::size_t zero = std::min(bytes.find('\0'), bytes.size());
  const auto write = [&](const char* name, std::string_view text) {
    std::ofstream(folder / name, std::ios::binary)
        .write(text.data(), static_cast<std::streamsize>(text.size()));
  };
  write("timeline-0.json", bytes.substr(0, zero));
  if (zero < bytes.size()) write("timeline-1.json", bytes.substr(zero + 1));
  accepted([&] { merge_timelines(folder, folder / "timeline.json"); });
  fs::remove_all(folder);
}
