// What the readers of files in fixed forms (topologies, profiles) ask of a tree, and how they refuse it.
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
  // Of a Table: what is behind the name; null where it is not there, or refused.
  static const Node* find(const Node& table, std::string_view name);
  const Node& needed(const Node& table, std::string_view name) const;
  // Refuses a Table with any other name, naming these.
  void know_keys(const Node& table, const std::vector<std::string>& known) const;
  // Of a whole number or a real one.
  static std::optional<double> number_in(const Node& node);

  const std::string file_;
  std::string where_;  // in the file, for messages: "round 2: "
};

}  // namespace starling
