#include "starling/membership/epoch.h"

#include <sstream>
#include <string_view>

#include <fmt/format.h>

#include "starling/core/text.h"

namespace starling {

std::vector<int> Epoch::members() const {
  std::vector<int> seats;
  for (const auto& [seat, life] : lives) seats.push_back(seat);
  return seats;
}

std::set<int> Epoch::away(int seats) const {
  std::set<int> empty;
  for (int seat = 0; seat < seats; ++seat) {
    if (!lives.contains(seat)) empty.insert(seat);
  }
  return empty;
}

bool Epoch::has(int seat, std::int64_t life) const {
  const auto found = lives.find(seat);
  return found != lives.end() && found->second == life;
}

std::string to_text(const Epoch& epoch) {
  std::string text = fmt::format("{} {}", epoch.number, epoch.run);
  for (const auto& [seat, life] : epoch.lives) text += fmt::format(" {}:{}", seat, life);
  return text;
}

std::optional<Epoch> read_epoch(const std::string& text, int seats) {
  std::istringstream words(text);
  std::string word, run_word;
  words >> word >> run_word;
  const auto number = parse_number<std::uint64_t>(word);
  const auto run = parse_number<std::int64_t>(run_word);
  if (!number || !run || *run < 0) return std::nullopt;
  Epoch epoch{.number = *number, .run = *run};
  while (words >> word) {
    const auto colon = word.find(':');
    if (colon == std::string::npos) return std::nullopt;
    const auto seat = parse_number<int>(std::string_view(word).substr(0, colon));
    const auto life = parse_number<std::int64_t>(std::string_view(word).substr(colon + 1));
    if (!seat || !life || *seat < 0 || *seat >= seats || *life <= 0) return std::nullopt;
    if (!epoch.lives.emplace(*seat, *life).second) return std::nullopt;
  }
  return epoch;
}

}  // namespace starling
