#include "starling/data/tokens.h"

#include <algorithm>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/little_endian.h"
#include "starling/core/text.h"

namespace starling {

namespace {

constexpr std::int64_t kSample = 4096;  // tokens

std::int64_t swapped(std::int64_t token) { return (token & 0xff) << 8 | token >> 8; }

}  // namespace

Tokens::Tokens(const std::string& path, std::int64_t vocabulary)
    : path_(path),
      vocabulary_(vocabulary),
      file_(path),
      size_(static_cast<std::int64_t>(file_.bytes().size() / 2)) {
  if (file_.bytes().size() % 2 != 0)
    throw Error(
        fmt::format("{}: has {} bytes, which are no whole tokens of 2 bytes: the file breaks off, or "
                    "is none of tokens",
                    path, file_.bytes().size()));
  bool fits = true, fits_swapped = true;
  for (std::int64_t i = 0; i < std::min(kSample, size_); ++i) {
    const std::int64_t token = at(i * size_ / std::min(kSample, size_));
    fits &= token < vocabulary_;
    fits_swapped &= swapped(token) < vocabulary_;
  }
  if (!fits && fits_swapped)
    throw Error(
        fmt::format("{}: its tokens have the high byte first: write them with the low byte first "
                    "(numpy's \"<u2\")",
                    path));
}

std::int64_t Tokens::at(std::int64_t place) const {
  return take<std::uint16_t>(file_.bytes(), 2 * static_cast<std::size_t>(place));
}

void Tokens::copy(std::int64_t first, std::span<std::int64_t> to) const {
  for (std::size_t i = 0; i < to.size(); ++i) {
    const std::int64_t place = first + static_cast<std::int64_t>(i);
    to[i] = at(place);
    if (to[i] >= vocabulary_)
      throw Error(
          fmt::format("{}: token {} at place {} is not in the vocabulary of {} tokens: the file was "
                      "made with another one (model.vocabulary)",
                      path_, to[i], place, vocabulary_));
  }
}

std::vector<std::int64_t> tokens_of_text(std::string_view text, std::int64_t first, std::int64_t vocabulary,
                                         const std::string& place) {
  constexpr const char* kBetween = " \n";
  std::vector<std::int64_t> tokens;
  for (std::size_t at = text.find_first_not_of(kBetween); at != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    const std::string_view word = text.substr(at, end - at);
    const auto token = parse_number<std::int64_t>(word);
    if (!token || *token < first || *token >= vocabulary)
      throw Error(
          fmt::format("{}: {}: wants tokens from {} to {}", place, short_of(word), first, vocabulary - 1));
    tokens.push_back(*token);
    at = text.find_first_not_of(kBetween, end);
  }
  return tokens;
}

}  // namespace starling
