// The members of a run. Every change of them makes a new epoch, with new connections between them:
// an edge knows only the members of its own epoch, and a worker of an earlier one cannot reach it.
//
//   seat   a rank of the world. It is empty while no process of it takes part
//   life   a random number of one process in a seat, so that a restarted one is told apart
//   run    a random number of the run, so that the words of an earlier one are told apart
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace starling {

struct Epoch {
  std::uint64_t number = 0;
  std::map<int, std::int64_t> lives{};  // seat -> life, of the members
  std::int64_t run = 0;                 // 0: not known

  std::vector<int> members() const;     // by rising seat
  std::set<int> away(int seats) const;  // the empty ones of so many
  bool has(int seat, std::int64_t life) const;
  bool operator==(const Epoch&) const = default;
};

// "3 41 0:517 2:88": the number, the run, the members.
std::string to_text(const Epoch& epoch);
// Nothing if the text is no epoch of a world with so many seats.
std::optional<Epoch> read_epoch(const std::string& text, int seats);

}  // namespace starling
