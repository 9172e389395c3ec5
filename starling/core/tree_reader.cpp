#include "starling/core/tree_reader.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starling/core/error.h"
#include "starling/core/text.h"

namespace starling {

void TreeReader::refuse(int line, const std::string& what) const {
  throw UsageError(fmt::format("{}: {}{}", place(file_, line), where_, what));
}

const Node* TreeReader::find(const Node& table, std::string_view name) {
  for (const Member& member : *table.as<Node::Table>()) {
    if (member.name == name) return &member.node;
  }
  return nullptr;
}

const Node& TreeReader::needed(const Node& table, std::string_view name) const {
  const Node* node = find(table, name);
  if (!node) refuse(table.line, fmt::format("the key {} is missing", name));
  return *node;
}

void TreeReader::know_keys(const Node& table, const std::vector<std::string>& known) const {
  for (const Member& member : *table.as<Node::Table>()) {
    if (std::find(known.begin(), known.end(), member.name) != known.end()) continue;
    refuse(member.line, fmt::format("unknown key {}{}; there are: {}", short_of(member.name),
                                    did_you_mean(member.name, known), fmt::join(known, ", ")));
  }
}

std::optional<double> TreeReader::number_in(const Node& node) {
  if (const auto* whole = node.as<std::int64_t>()) return static_cast<double>(*whole);
  if (const auto* real = node.as<double>()) return *real;
  return std::nullopt;
}

}  // namespace starling
