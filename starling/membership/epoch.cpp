#include "starling/membership/epoch.h"

#include <charconv>
#include <limits>
#include <random>
#include <sstream>

#include <fmt/format.h>

namespace starling {
namespace {

template <class T>
std::optional<T> number_in(std::string_view text) {
  T number{};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || rest != end) return std::nullopt;
  return number;
}

}  // namespace

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
  std::string text = fmt::format("{}", epoch.number);
  for (const auto& [seat, life] : epoch.lives) text += fmt::format(" {}:{}", seat, life);
  return text;
}

std::optional<Epoch> read_epoch(const std::string& text, int seats) {
  std::istringstream words(text);
  std::string word;
  words >> word;
  const auto number = number_in<std::uint64_t>(word);
  if (!number) return std::nullopt;
  Epoch epoch{.number = *number};
  while (words >> word) {
    const auto colon = word.find(':');
    if (colon == std::string::npos) return std::nullopt;
    const auto seat = number_in<int>(std::string_view(word).substr(0, colon));
    const auto life = number_in<std::int64_t>(std::string_view(word).substr(colon + 1));
    if (!seat || !life || *seat < 0 || *seat >= seats || *life <= 0) return std::nullopt;
    if (!epoch.lives.emplace(*seat, *life).second) return std::nullopt;
  }
  return epoch;
}

std::int64_t new_life() {
  std::random_device device;
  return std::uniform_int_distribution<std::int64_t>(1, std::numeric_limits<std::int64_t>::max())(device);
}

}  // namespace starling
