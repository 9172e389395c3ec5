// The rounds of a schedule as one worker sees them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "starling/exchange/edge.h"
#include "starling/topology/graph.h"

namespace starling {

// A worker that I send to or receive from in a round.
struct Partner {
  int rank = 0;
  float weight = 0;  // of what I receive
  float given = 0;   // of what I send: the receiver's weight
  Direction direction;
};

struct Meeting {
  std::vector<Partner> partners;  // by rank
  std::vector<int> group;         // by rank, with me, if we are three or more that take our mean

  bool in_group() const { return !group.empty(); }
  int swaps() const { return in_group() ? 1 : static_cast<int>(partners.size()); }
};

// Never changes, so any thread may ask.
class Meetings {
 public:
  // groups: workers that take their mean meet as a group, not in pairs.
  Meetings(const Schedule& schedule, int me, bool groups);

  const Meeting& at(std::uint64_t round) const { return rounds_[(round - 1) % rounds_.size()]; }
  std::size_t period() const { return rounds_.size(); }
  const std::set<int>& neighbours() const { return neighbours_; }  // of all rounds
  bool always_one_group() const { return rounds_.size() == 1 && rounds_.front().in_group(); }

 private:
  std::vector<Meeting> rounds_;
  std::set<int> neighbours_;
};

}  // namespace starling
