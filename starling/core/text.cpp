#include "starling/core/text.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "starling/core/error.h"

namespace starling {

namespace {

constexpr std::size_t kMostMessage = 2000;  // bytes: no file makes a message longer

// The bytes of the code point at the begin of a text that is not empty; 0 if it is not UTF-8.
std::size_t first_code_point(std::string_view text, std::uint32_t& code) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char c = byte(0);
  const std::size_t bytes = c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
  if (bytes == 0 || bytes > text.size()) return 0;
  code = bytes == 1 ? c : c & (0x7FU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3F);
  }
  const bool overlong = (bytes == 3 && code < 0x800) || (bytes == 4 && code < 0x10000);
  return overlong || (code >= 0xD800 && code < 0xE000) || code > 0x10FFFF ? 0 : bytes;
}

bool disturbs_a_line(std::uint32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0)                                // control characters
         || code == 0x2028 || code == 0x2029                                         // line separators
         || code == 0x061C || code == 0x200E || code == 0x200F                       // direction marks ..
         || (code >= 0x202A && code < 0x202F) || (code >= 0x2066 && code < 0x206A);  // .. and overrides
}

std::string printable(std::string_view text, std::string_view also) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    std::uint32_t code = 0;
    const std::size_t bytes = first_code_point(text, code);
    if (bytes == 0) {
      out += fmt::format("\\x{:02X}", static_cast<unsigned char>(text.front()));
    } else if (disturbs_a_line(code)) {
      out += fmt::format("\\u{:04X}", code);
    } else {
      if (also.find(text.front()) != std::string_view::npos) out += '\\';
      out += text.substr(0, bytes);
    }
    text.remove_prefix(std::max<std::size_t>(bytes, 1));
  }
  return out;
}

// Not more than this of it, and no half of a code point.
std::string_view beginning_of(std::string_view text, std::size_t most) {
  if (text.size() <= most) return text;
  std::size_t end = most;
  while (end > most - 4 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

}  // namespace

Error::Error(const std::string& message)
    : std::runtime_error(printable(beginning_of(message, kMostMessage)) +
                         (message.size() > kMostMessage ? "..." : "")) {}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    std::uint32_t code = 0;
    const std::size_t bytes = first_code_point(text, code);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

std::string printable(std::string_view text) { return printable(text, ""); }

std::string in_quotes(std::string_view text) { return '"' + printable(text, "\"\\") + '"'; }

std::string short_of(std::string_view text) {
  constexpr std::size_t kMost = 60;
  return in_quotes(beginning_of(text, kMost)) + (text.size() > kMost ? "..." : "");
}

std::string place(const std::string& file, int line) {
  return line > 0 ? fmt::format("{}:{}", file, line) : file;
}

std::string nearest_name(const std::string& name, const std::vector<std::string>& names,
                         std::optional<std::size_t> most) {
  std::string nearest;
  std::size_t least = most.value_or(std::max<std::size_t>(2, name.size() / 3)) + 1;
  if (name.size() > 64) return nearest;
  for (const std::string& other : names) {
    // Levenshtein distance. row[j]: edits between the part of `name` read so far and the first j
    // characters of `other`.
    std::vector<std::size_t> row(other.size() + 1), before, earlier;  // and the rows of shorter parts
    for (std::size_t j = 0; j <= other.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= name.size(); ++i) {
      earlier = std::exchange(before, row);
      row[0] = i;
      for (std::size_t j = 1; j <= other.size(); ++j) {
        const std::size_t replaced = before[j - 1] + (name[i - 1] != other[j - 1]);
        row[j] = std::min({before[j] + 1, row[j - 1] + 1, replaced});
        if (i > 1 && j > 1 && name[i - 1] == other[j - 2] && name[i - 2] == other[j - 1])
          row[j] = std::min(row[j], earlier[j - 2] + 1);
      }
    }
    if (row.back() < least) {
      least = row.back();
      nearest = other;
    }
  }
  return nearest;
}

std::string did_you_mean(const std::string& name, const std::vector<std::string>& names) {
  const std::string nearest = nearest_name(name, names);
  return nearest.empty() ? "" : fmt::format(", did you mean {}?", nearest);
}

}  // namespace starling
