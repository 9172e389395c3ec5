#include "starling/exchange/meetings.h"

#include <algorithm>
#include <map>

#include "starling/topology/traffic.h"

namespace starling {
namespace {

Meeting meeting_of(const Graph& graph, int me) {
  std::map<int, Partner> partners;
  for (const Neighbour& from : graph.neighbours[static_cast<std::size_t>(me)])
    partners[from.rank] = {from.rank, static_cast<float>(from.weight), 0, {.send = false, .receive = true}};
  for (int to = 0; to < graph.workers(); ++to) {
    for (const Neighbour& from : graph.neighbours[static_cast<std::size_t>(to)]) {
      if (from.rank != me) continue;
      const Partner only_sent_to{to, 0, 0, {.send = true, .receive = false}};
      Partner& partner = partners.try_emplace(to, only_sent_to).first->second;
      partner.given = static_cast<float>(from.weight);
      partner.direction.send = true;
    }
  }
  Meeting meeting;
  for (const auto& [rank, partner] : partners) meeting.partners.push_back(partner);
  return meeting;
}

}  // namespace

Meetings::Meetings(const Schedule& schedule, int me, bool groups) {
  for (const Graph& graph : schedule.rounds) {
    Meeting& round = rounds_.emplace_back(meeting_of(graph, me));
    for (const Partner& partner : round.partners) neighbours_.insert(partner.rank);
    if (!groups) continue;
    for (const auto& group : averaging_groups(graph)) {
      if (std::ranges::find(group, me) != group.end()) round.group = group;
    }
  }
}

}  // namespace starling
