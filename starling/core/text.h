// Text of files, peers, the environment and the command line in messages.
#pragma once

#include <string>
#include <string_view>

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

// "file:7", or "file" if the line is not known.
std::string place(const std::string& file, int line);

}  // namespace starling
