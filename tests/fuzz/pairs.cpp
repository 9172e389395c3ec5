// Pairs of sentences (data/pairs.h): the first two bytes are the vocabulary, the rest is the file.
#include "starling/data/pairs.h"

#include <vector>

#include "tests/fuzz/target.h"

namespace starling::fuzz {

void read(std::string_view bytes) {
  if (bytes.size() < 2) return;
  const std::int64_t vocabulary =
      3 + static_cast<unsigned char>(bytes[0]) + 256 * std::int64_t{static_cast<unsigned char>(bytes[1])};
  bytes.remove_prefix(2);
  const TemporaryFile file{std::string(bytes), ".pairs"};
  accepted([&] {
    const Pairs pairs(file.path(), vocabulary);
    std::int64_t tokens = 0;
    for (std::int64_t i = 0; i < pairs.size(); ++i) {
      std::vector<std::int64_t> source(static_cast<std::size_t>(pairs.source_length(i))),
          target(static_cast<std::size_t>(pairs.target_length(i)));
      check(!source.empty() && !target.empty(), "an empty sentence");
      pairs.copy_source(i, source);
      pairs.copy_target(i, target);
      for (const auto& sentence : {source, target}) {
        for (const std::int64_t token : sentence)
          check(Pairs::kFirstToken <= token && token < vocabulary, "a token outside");
        tokens += std::ssize(sentence);
      }
    }
    check(16 + 8 * (2 * pairs.size() + 1) + 2 * tokens == std::ssize(bytes),
          "another size than the file has");
  });
}

}  // namespace starling::fuzz
