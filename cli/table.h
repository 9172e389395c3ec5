// Rows as text in columns.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace starling::cli {

// A row's cells in columns of these widths, with two spaces between. It may have fewer cells.
inline std::string table_line(const std::vector<std::string>& row, const std::vector<std::size_t>& widths) {
  std::string line;
  for (std::size_t c = 0; c < row.size(); ++c) line += fmt::format("{:<{}}  ", row[c], widths[c]);
  return line.substr(0, line.find_last_not_of(' ') + 1);
}

// Makes the columns as wide as their cells in the row.
inline void widen(std::vector<std::size_t>& widths, const std::vector<std::string>& row) {
  widths.resize(std::max(widths.size(), row.size()));
  for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
}

// Columns as wide as their longest cell.
inline std::string table_text(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) widen(widths, row);
  std::string text;
  for (const auto& row : rows) text += table_line(row, widths) + "\n";
  return text;
}

}  // namespace starling::cli
