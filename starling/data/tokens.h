// A text as tokens: a file of 16-bit numbers, the low byte first, and nothing else, as nanoGPT's
// train.bin and val.bin. It is mapped into memory (mapped_file.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "starling/data/mapped_file.h"

namespace starling {

class Tokens {
 public:
  // `vocabulary`: every token is smaller. Throws Error, with the path, if the file cannot be
  // mapped, breaks off within a token, or has its bytes the other way round, as far as a sample of
  // it shows.
  Tokens(const std::string& path, std::int64_t vocabulary);

  std::int64_t size() const { return size_; }
  // Copies the tokens from `first` on. Throws Error, with the path and the place, if one is not in
  // the vocabulary.
  void copy(std::int64_t first, std::span<std::int64_t> to) const;

 private:
  std::int64_t at(std::int64_t place) const;

  const std::string path_;
  const std::int64_t vocabulary_;
  const MappedFile file_;
  const std::int64_t size_;
};

// The same as text: numbers from `first` to vocabulary - 1, between spaces and line breaks. Throws
// Error, which begins with `place`, for anything else.
std::vector<std::int64_t> tokens_of_text(std::string_view text, std::int64_t first, std::int64_t vocabulary,
                                         const std::string& place);

}  // namespace starling
