// Text of files, peers, the environment and the command line in messages.
#pragma once

#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace starling {

// Well-formed UTF-8 (RFC 3629: no overlong forms, no surrogates).
bool is_utf8(std::string_view text);

// The text in one line that no terminal obeys: control characters, line separators and marks of
// writing direction become \u000A, and bytes outside UTF-8 become \xFF. Error and the logs do this
// to every message.
std::string printable(std::string_view text);

// The same between quotes, with \" and \\ for these two characters. UTF-8 text becomes a TOML basic
// string.
std::string in_quotes(std::string_view text);
// in_quotes() of the beginning, with ... if the text is long.
std::string short_of(std::string_view text);

// All of the text as a number; nothing if it is none, or out of T's range.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}

// "file:7", or "file" if the line is not known.
std::string place(const std::string& file, int line);

// The name nearest to `name` by edit distance, in which two swapped neighbours are one edit. Empty
// if none is within `most` edits (default: a third of its characters, at least 2).
std::string nearest_name(const std::string& name, const std::vector<std::string>& names,
                         std::optional<std::size_t> most = {});
// ", did you mean NAME?" with that nearest name, for an error message; empty without one.
std::string did_you_mean(const std::string& name, const std::vector<std::string>& names);

}  // namespace starling
