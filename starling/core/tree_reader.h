// Queries and refusals for the readers of fixed file formats (topologies, profiles).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "starling/core/tree.h"

namespace starling {

class TreeReader {
 protected:
  explicit TreeReader(std::string file) : file_(std::move(file)) {}

  // Throws UsageError: "file:7: round 2: what".
  [[noreturn]] void refuse(int line, const std::string& what) const;
  // The value behind the name in a Table. If the name is absent, find() returns null and needed()
  // refuses the table.
  static const Node* find(const Node& table, std::string_view name);
  const Node& needed(const Node& table, std::string_view name) const;
  // Refuses a Table with any other name, and lists these.
  void know_keys(const Node& table, const std::vector<std::string>& known) const;
  // The value of a whole or real number.
  static std::optional<double> number_in(const Node& node);

  const std::string file_;
  std::string where_;  // the place in the file, for messages: "round 2: "
};

}  // namespace starling
