#include "cli/topology_compare.h"

#include <algorithm>
#include <limits>
#include <map>

#include "starling/core/error.h"
#include "starling/optim/options.h"
#include "starling/topology/ceca.h"
#include "starling/topology/schedules.h"
#include "starling/topology/spectrum.h"

namespace starling::cli {

namespace {

constexpr double kConsensus = 1e-6;

// One name of each family, several of the families by number of peers. One seed represents all.
std::vector<std::string> names_to_compare() {
  std::vector<std::string> names{Options{}.topology};  // the name of a line that others equal
  for (const ScheduleInfo& info : known_schedules()) {
    if (info.name.ends_with("-SEED")) continue;
    if (info.example != names.front()) names.push_back(info.example);
    if (!info.name.ends_with("-K")) continue;
    for (const char* K : {"3", "4"}) names.push_back(info.name.substr(0, info.name.size() - 1) + K);
  }
  return names;
}

Compared compared(const Schedule& schedule, int workers_per_node, const Sizes& sizes,
                  const std::optional<Approach>& approach) {
  Compared line;
  line.name = schedule.name;
  line.rounds = approach ? approach->rounds : std::numeric_limits<double>::infinity();
  line.estimated = approach && approach->estimated;
  std::vector<double> nodes;
  for (const Graph& round : schedule.rounds) {
    const std::vector<double> sent = sent_by_nodes(round, workers_per_node, sizes);
    nodes.resize(sent.size());
    for (std::size_t k = 0; k < sent.size(); ++k) nodes[k] += sent[k];
    for (const auto& row : round.neighbours) line.peers = std::max(line.peers, static_cast<int>(row.size()));
    line.symmetric = line.symmetric && round.symmetric();
  }
  line.per_round =
      *std::max_element(nodes.begin(), nodes.end()) / static_cast<double>(schedule.rounds.size());
  line.in_all = line.per_round == 0 ? 0 : line.per_round * line.rounds;
  return line;
}

}  // namespace

std::vector<Compared> compare_schedules(int n, int workers_per_node, const Sizes& sizes,
                                        const std::string& extra) {
  std::vector<std::string> names = names_to_compare();
  if (!extra.empty() && std::find(names.begin(), names.end(), extra) == names.end()) {
    make_schedule(extra, n, workers_per_node);  // throws
    names.push_back(extra);
  }
  std::vector<Compared> lines;
  std::map<std::uint64_t, std::size_t> known;  // fingerprint -> line
  for (const std::string& name : names) {
    Schedule schedule;
    try {
      schedule = make_schedule(name, n, workers_per_node);
    } catch (const UsageError&) {  // the family does not exist for this n
      continue;
    }
    const auto [place, is_new] = known.emplace(schedule.fingerprint(), lines.size());
    if (is_new) {
      lines.push_back(compared(schedule, workers_per_node, sizes, rounds_to_consensus(schedule, kConsensus)));
    } else {
      lines[place->second].same.push_back(name);
    }
  }
  if (n > 1) {  // its rounds are exact, but with two vectors
    const Schedule schedule = ceca_2p(n);
    lines.push_back(compared(schedule, workers_per_node, sizes,
                             Approach{.rounds = static_cast<double>(schedule.rounds.size())}));
  }
  std::stable_sort(lines.begin(), lines.end(), [](const Compared& a, const Compared& b) {
    return std::pair(a.in_all, a.rounds) < std::pair(b.in_all, b.rounds);
  });
  return lines;
}

}  // namespace starling::cli
