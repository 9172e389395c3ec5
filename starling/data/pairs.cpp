#include "starling/data/pairs.h"

#include <string_view>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/little_endian.h"

namespace starling {

namespace {

constexpr std::string_view kKind = "PAIR";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHeader = 16;  // bytes

}  // namespace

Pairs::Pairs(const std::string& path, std::int64_t vocabulary)
    : path_(path), vocabulary_(vocabulary), file_(path) {
  const auto fail = [&](const std::string& why) { throw Error(fmt::format("{}: {}", path, why)); };
  const std::span<const std::byte> bytes = file_.bytes();
  if (bytes.size() < kHeader || std::string_view(reinterpret_cast<const char*>(bytes.data()), 4) != kKind)
    fail("is no file of sentence pairs, as `starling pack translation` makes them");
  const auto version = take<std::uint32_t>(bytes, 4);
  if (version == kVersion << 24)
    fail("has the high byte of its numbers first: write them with the low byte first");
  if (version != kVersion) fail(fmt::format("has layout {}, known is {}", version, kVersion));
  const auto pairs = take<std::uint64_t>(bytes, 8);
  if (pairs == 0) fail("has no pairs");
  if (pairs >= (bytes.size() - kHeader + 8) / 16)  // 2n + 1 places need 16 n + 8 bytes
    fail(fmt::format("breaks off: it has {} bytes, too few for {} pairs", bytes.size(), pairs));
  size_ = static_cast<std::int64_t>(pairs);
  const std::uint64_t tokens = (bytes.size() - kHeader - 8 * (2 * pairs + 1)) / 2;
  if (place(0) != 0) fail("its first sentence does not begin at place 0");
  for (std::int64_t i = 0; i < 2 * size_; ++i) {
    const auto end = static_cast<std::uint64_t>(place(i + 1));
    if (end > tokens)
      fail(fmt::format("breaks off: the {} of pair {} ends at place {}, but the file has {} tokens",
                       i % 2 == 0 ? "source" : "target", i / 2, end, tokens));
    if (place(i + 1) <= place(i))
      fail(fmt::format("the {} of pair {} is empty or begins behind its end",
                       i % 2 == 0 ? "source" : "target", i / 2));
  }
  if (const auto used = static_cast<std::uint64_t>(place(2 * size_));
      bytes.size() != kHeader + 8 * (2 * pairs + 1) + 2 * used)
    fail(fmt::format("has {} bytes behind its {} tokens",
                     bytes.size() - kHeader - 8 * (2 * pairs + 1) - 2 * used, used));
}

std::int64_t Pairs::place(std::int64_t sentence) const {
  return static_cast<std::int64_t>(
      take<std::uint64_t>(file_.bytes(), kHeader + 8 * static_cast<std::size_t>(sentence)));
}

void Pairs::copy(std::int64_t sentence, std::span<std::int64_t> to) const {
  const std::size_t tokens = kHeader + 8 * (2 * static_cast<std::size_t>(size_) + 1);
  const std::size_t first = tokens + 2 * static_cast<std::size_t>(place(sentence));
  for (std::size_t i = 0; i < to.size(); ++i) {
    to[i] = take<std::uint16_t>(file_.bytes(), first + 2 * i);
    if (to[i] < kFirstToken || to[i] >= vocabulary_)
      throw Error(fmt::format(
          "{}: token {} in the {} of pair {}: allowed are {} to {} (model.vocabulary = {}): the file "
          "was made with another vocabulary",
          path_, to[i], sentence % 2 == 0 ? "source" : "target", sentence / 2, kFirstToken, vocabulary_ - 1,
          vocabulary_));
  }
}

}  // namespace starling
