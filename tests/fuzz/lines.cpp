// metrics.jsonl of a run that is resumed.
#include <array>

#include "starling/train/lines_file.h"
#include "tests/fuzz/target.h"

void starling::fuzz::read(std::string_view bytes) {
  const TemporaryFile file(bytes, ".jsonl");
  const std::array<std::int64_t, 3> steps{10, 0, 1'000'000};
  const Log log = [](Level, const std::string& said) {
    check(Error(said).what() == printable(said), "a long warning");
  };
  const std::string kept = lines_up_to(file.path(), steps, log);
  check(kept.empty() || kept.back() == '\n', "half a line");
  std::string_view rest = bytes;
  for (std::string_view left = kept; !left.empty();) {
    const std::string_view line = left.substr(0, left.find('\n'));
    const std::size_t at = rest.find(line);
    check(at != std::string_view::npos, "a line that was not there");
    rest.remove_prefix(at + line.size());
    left.remove_prefix(line.size() + 1);
  }
  const TemporaryFile again(kept, ".jsonl");
  check(
      lines_up_to(again.path(), steps, [](Level, const std::string&) { check(false, "a warning"); }) == kept,
      "other lines of the same");
}
