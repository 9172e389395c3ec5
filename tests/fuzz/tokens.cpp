// Tokens in a file and as text (data/tokens.h): the first two bytes are the vocabulary, the rest is
// read as both.
#include "starling/data/tokens.h"

#include <string>
#include <vector>

#include "tests/fuzz/target.h"

namespace starling::fuzz {

void read(std::string_view bytes) {
  if (bytes.size() < 2) return;
  const std::int64_t vocabulary =
      2 + static_cast<unsigned char>(bytes[0]) + 256 * std::int64_t{static_cast<unsigned char>(bytes[1])};
  bytes.remove_prefix(2);
  const TemporaryFile file{std::string(bytes), ".bin"};
  accepted([&] {
    const Tokens tokens(file.path(), vocabulary);
    check(2 * tokens.size() == std::ssize(bytes), "another number of tokens than the file has");
    std::vector<std::int64_t> all(static_cast<std::size_t>(tokens.size()));
    tokens.copy(0, all);
    for (const std::int64_t token : all) check(0 <= token && token < vocabulary, "a token outside");
  });
  for (const std::int64_t first : {0, 2}) {
    accepted([&] {
      std::string again;
      for (const std::int64_t token : tokens_of_text(bytes, first, vocabulary, "stdin:1")) {
        check(first <= token && token < vocabulary, "a token outside");
        again += std::to_string(token) + "\n";
      }
      check(tokens_of_text(again, first, vocabulary, "again") ==
                tokens_of_text(bytes, first, vocabulary, "stdin:1"),
            "is read as others");
    });
  }
}

}  // namespace starling::fuzz
