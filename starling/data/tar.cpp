#include "starling/data/tar.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/text.h"

namespace starling {

namespace {

using Bytes = std::span<const std::byte>;

constexpr std::size_t kBlock = 512;  // headers and data begin at its multiples

struct Field {
  std::size_t at, size;
};
constexpr Field kName{0, 100}, kSize{124, 12}, kSum{148, 8}, kMagic{257, 8}, kPrefix{345, 155};
constexpr std::size_t kTypeAt = 156;

constexpr std::string_view kPosix{"ustar\0", 6}, kGnu{"ustar  \0", 8};

std::string_view as_text(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
std::string_view up_to_zero(std::string_view text) { return text.substr(0, text.find('\0')); }

std::string_view field(Bytes header, Field which) { return as_text(header.subspan(which.at, which.size)); }

bool is_zero(Bytes bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{}; });
}

// All of the text, as a number.
std::optional<std::uint64_t> number(std::string_view text, int base) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Octal digits, with spaces before and spaces or zeros behind them. GNU's other form, for large
// values, has the first bit set: a number with the high byte first.
std::optional<std::uint64_t> numeric(std::string_view text) {
  if (static_cast<unsigned char>(text[0]) == 0x80) {
    std::uint64_t value = 0;
    for (const char c : text.substr(1)) {
      if (value >> 55 != 0) return std::nullopt;
      value = value << 8 | static_cast<unsigned char>(c);
    }
    return value;
  }
  text = up_to_zero(text);
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  return number(text.substr(0, text.find(' ')), 8);
}

}  // namespace

TarReader::TarReader(std::string path, Bytes archive) : path_(std::move(path)), archive_(archive) {}

void TarReader::fail(const std::string& why) const { throw Error(fmt::format("{}: {}", path_, why)); }

void TarReader::check_header(Bytes header) const {
  if (const std::string_view magic = field(header, kMagic); !magic.starts_with(kPosix) && magic != kGnu)
    fail(place_ == 0 ? "is no tar archive" : fmt::format("there is no tar header at byte {}", place_));
  std::uint64_t sum = kSum.size * ' ';
  for (std::size_t i = 0; i < kBlock; ++i) {
    if (i < kSum.at || i >= kSum.at + kSum.size) sum += std::to_integer<unsigned>(header[i]);
  }
  if (numeric(field(header, kSum)) != sum) fail(fmt::format("its header at byte {} is damaged", place_));
}

void TarReader::check_end() const {
  if (!is_zero(archive_.subspan(place_)))
    fail(fmt::format("goes on behind its end at byte {}: archives cannot be joined by cat", place_));
  if (archive_.size() - place_ < 2 * kBlock)
    fail(fmt::format("breaks off in its end, which is 1024 bytes, at byte {}", place_));
}

// Records "LENGTH KEY=VALUE\n"; the length is that of the whole record.
TarReader::Said TarReader::read_pax(std::string_view records) const {
  Said said;
  while (!records.empty()) {
    const std::size_t space = std::min(records.find(' '), records.size());
    const auto length = number(records.substr(0, space), 10);
    if (!length || *length <= space + 1 || *length > records.size() || records[*length - 1] != '\n')
      fail(fmt::format("its extended header at byte {} is damaged", place_));
    const std::string_view record = records.substr(space + 1, *length - space - 2);
    const std::size_t equals = record.find('=');
    if (equals == std::string_view::npos)
      fail(fmt::format("its extended header at byte {} has a key without a value", place_));
    const std::string_view key = record.substr(0, equals), value = record.substr(equals + 1);
    if (key == "path") {
      said.name = value;
    } else if (key == "size") {
      said.size = number(value, 10);
      if (!said.size)
        fail(fmt::format("its extended header at byte {} has the size {}", place_, short_of(value)));
    } else if (key.starts_with("GNU.sparse.")) {
      fail(fmt::format("has a sparse file at byte {}: only plain files and folders are read", place_));
    }
    records.remove_prefix(*length);
  }
  return said;
}

std::optional<TarFile> TarReader::next() {
  Said said;
  bool expects_member = false;
  while (true) {
    const Bytes rest = archive_.subspan(place_);
    if (rest.size() < kBlock) fail(fmt::format("breaks off at byte {}: its end is missing", archive_.size()));
    const Bytes header = rest.first(kBlock);
    if (is_zero(header)) {
      if (expects_member) fail(fmt::format("ends at byte {}, where a file is announced", place_));
      check_end();
      return std::nullopt;
    }
    check_header(header);
    const char type = field(header, {kTypeAt, 1})[0];
    const bool is_member = type != 'x' && type != 'g' && type != 'L' && type != 'K';
    auto size = numeric(field(header, kSize));
    if (is_member && said.size) size = said.size;
    if (!size) fail(fmt::format("its header at byte {} has no size", place_));
    if (type == '5') size = 0;  // that of a folder tells how much may be in it
    const std::uint64_t room = rest.size() - kBlock;
    if (*size > room || (kBlock - *size % kBlock) % kBlock > room - *size)
      fail(fmt::format("breaks off: the member at byte {} has {} bytes, of which {} are there", place_, *size,
                       std::min(*size, room)));
    const Bytes data = rest.subspan(kBlock, *size);
    const std::size_t after = place_ + kBlock + (*size + kBlock - 1) / kBlock * kBlock;

    std::string name = said.name.value_or(std::string(up_to_zero(field(header, kName))));
    if (const auto prefix = up_to_zero(field(header, kPrefix));
        !said.name && !prefix.empty() && field(header, kMagic) != kGnu)
      name = fmt::format("{}/{}", prefix, name);
    switch (type) {
      case 'x': {
        Said more = read_pax(as_text(data));
        if (more.name) said.name = std::move(more.name);
        if (more.size) said.size = more.size;
        break;
      }
      case 'g':
        if (const Said all = read_pax(as_text(data)); all.name || all.size)
          fail(fmt::format("gives all files one name or size at byte {}", place_));
        break;
      case 'L':
        said.name = up_to_zero(as_text(data));
        break;
      case 'K':
        break;  // the name that a link points to
      case '0':
      case '\0':
      case '7':
        place_ = after;
        return TarFile{std::move(name), data};
      case '5':
        said = {};
        break;
      default:
        fail(fmt::format("{} is no plain file or folder, but of type {}", short_of(name),
                         in_quotes({&type, 1})));
    }
    expects_member = !is_member;
    place_ = after;
  }
}

}  // namespace starling
