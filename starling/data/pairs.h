// Pairs of sentences in two languages, as tokens: one file, all numbers with the low byte first.
//
//   4 bytes         "PAIR"
//   u32             1, the version of the layout
//   u64             n, the number of pairs
//   u64 x (2n + 1)  the places of the source and target of each pair among the tokens, and
//                   the place behind the last one
//   u16 x ..        the tokens
//
// The tokens 0 and 1, padding and the end of a sentence (models/transformer.h), are not in it. The
// file is mapped into memory (mapped_file.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "starling/data/mapped_file.h"

namespace starling {

class Pairs {
 public:
  static constexpr std::int64_t kFirstToken = 2;

  // `vocabulary`: every token is smaller. Reads the places, not the tokens. Throws Error, with the
  // path, if the file cannot be mapped, is of another kind or byte order, breaks off, has an empty
  // sentence, or has places that do not ascend.
  Pairs(const std::string& path, std::int64_t vocabulary);

  std::int64_t size() const { return size_; }
  // Tokens of a sentence.
  std::int64_t source_length(std::int64_t pair) const { return place(2 * pair + 1) - place(2 * pair); }
  std::int64_t target_length(std::int64_t pair) const { return place(2 * pair + 2) - place(2 * pair + 1); }
  // Copies the tokens of a sentence. `to` has its length. Throws Error, with the path and the pair,
  // if one is not in the vocabulary.
  void copy_source(std::int64_t pair, std::span<std::int64_t> to) const { copy(2 * pair, to); }
  void copy_target(std::int64_t pair, std::span<std::int64_t> to) const { copy(2 * pair + 1, to); }

 private:
  std::int64_t place(std::int64_t sentence) const;
  void copy(std::int64_t sentence, std::span<std::int64_t> to) const;

  const std::string path_;
  const std::int64_t vocabulary_;
  const MappedFile file_;
  std::int64_t size_ = 0;
};

}  // namespace starling
