// A TOML or JSON text as one small tree. The readers of recipes and of topology files see neither
// parser.
//
// The text may be hostile (huge, deeply nested, not UTF-8, a device). It is refused like any other
// mistake: by a UsageError of one line that names the file and, if known, the line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "starling/core/text.h"

namespace starling {

struct Member;

// One value. TOML's dates and JSON's null are kept by their names in messages.
struct Node {
  struct Other {
    std::string kind;
  };
  using Array = std::vector<Node>;
  using Table = std::vector<Member>;  // by rising name, each name once
  std::variant<Other, bool, std::int64_t, double, std::string, Array, Table> value;
  int line = 0;  // 0: not known (JSON)

  template <class T>
  const T* as() const {
    return std::get_if<T>(&value);
  }
  std::string kind() const;  // "a whole number"
};

struct Member {
  std::string name;
  Node node;
  int line = 0;  // of the name
};

// Reads a whole file of at most `most` bytes. `kind` is the expected kind in messages: "recipe".
std::string read_at_most(const std::string& path, std::size_t most, std::string_view kind);

// The root is a Table. `name` is the file name in messages. Recursion is bounded, and memory is
// limited by the text's length.
Node parse_toml(std::string_view text, const std::string& name);
Node parse_json(std::string_view text, const std::string& name);
// The same for line `number` of a file with one object per line.
Node parse_json_line(std::string_view text, const std::string& name, int number);

}  // namespace starling
