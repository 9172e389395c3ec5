// Tokens as text: the first two bytes are the vocabulary.
#include "starling/data/tokens.h"
#include "tests/fuzz/target.h"

namespace starling::fuzz {

void read(std::string_view bytes) {
  if (bytes.size() < 2) return;
  const std::int64_t vocabulary =
      2 + static_cast<unsigned char>(bytes[0]) + 256 * std::int64_t{static_cast<unsigned char>(bytes[1])};
  bytes.remove_prefix(2);
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
