#include "cli/topology_compare.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "starling/core/error.h"
#include "starling/optim/options.h"
#include "starling/optim/schemes/table.h"
#include "starling/optim/sent_size.h"
#include "starling/topology/schedules.h"
#include "starling/topology/spectrum.h"

namespace starling::cli {

namespace {

constexpr double kConsensus = 1e-6;
constexpr double kAlike = 0.01;  // share of the bytes that makes no difference

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

// A topology for the scheme: the first of these that it takes. Empty: it takes none so.
std::string topology_for(const SchemeInfo& info, Options options, int n, const std::string& extra) {
  for (const std::string& name : std::vector<std::string>{extra, std::string(info.advice.topology),
                                                          Options{}.topology, "ring", "complete"}) {
    if (name.empty()) continue;
    options.topology = name;
    try {
      check_options(options, n, options.workers_per_node, false);
      return name;
    } catch (const UsageError&) {  // the next one
    }
  }
  return "";
}

std::optional<Approach> approach_of(const SchemeInfo& info, const Schedule& schedule) {
  switch (info.traits.agrees) {
    case Agrees::as_topology:
      if (!std::ranges::all_of(schedule.rounds, &Graph::balanced)) return std::nullopt;
      return rounds_to_consensus(schedule, kConsensus);
    case Agrees::in_a_period:
      return Approach{.rounds = static_cast<double>(schedule.rounds.size())};
    case Agrees::in_its_own_way:
      return std::nullopt;
  }
  return std::nullopt;
}

// Adds the schemes in rounds that send something else than the parameters in `sizes`, or that agree
// in rounds of their own.
void add_scheme_lines(Comparison& all, int n, Options options, const Sizes& sizes, const std::string& extra) {
  const Block block = typical_block();
  const double model = static_cast<double>(block.length) * sizeof(float);
  std::map<std::pair<std::uint64_t, Agrees>, std::optional<Approach>>
      approaches;  // takes long for many workers
  for (const SchemeInfo* const info : schemes()) {
    const SchemeTraits& traits = info->traits;
    if (traits.edges == EdgeKind::none || (traits.path != Path::ahead && traits.path != Path::inside))
      continue;
    options.scheme = std::string(info->name);
    options.topology = topology_for(*info, options, n, extra);
    if (options.topology.empty()) {
      all.left_out.emplace_back(info->name);
      continue;
    }
    const Schedule schedule = schedule_of(options, n, options.workers_per_node);
    const SentSize sent = sent_size(block, schedule, options);
    const Sizes own{
        .block = sent.block / model, .mean = sent.mean / model, .groups = contents_of(options).has_mean()};
    const bool like_parameters = std::abs(own.block - sizes.block) < kAlike * sizes.block;
    if (like_parameters && traits.agrees != Agrees::in_a_period) {
      if (traits.agrees == Agrees::in_its_own_way) all.other_rounds.emplace_back(info->name);
      continue;
    }
    const auto [known, is_new] = approaches.try_emplace({schedule.fingerprint(), traits.agrees});
    if (is_new) known->second = approach_of(*info, schedule);
    const std::optional<Approach>& approach = known->second;
    Compared& line = all.lines.emplace_back(compared(schedule, options.workers_per_node, own, approach));
    line.scheme = info->name;
    line.has_rounds = approach.has_value();
  }
}

}  // namespace

Comparison compare_schedules(int n, const Options& options, const Sizes& sizes, const std::string& extra) {
  const int workers_per_node = options.workers_per_node;
  std::vector<std::string> names = names_to_compare();
  if (!extra.empty() && std::find(names.begin(), names.end(), extra) == names.end()) {
    make_schedule(extra, n, workers_per_node);  // throws
    names.push_back(extra);
  }
  Comparison all;
  std::vector<Compared>& lines = all.lines;
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
  if (n > 1) add_scheme_lines(all, n, options, sizes, extra);
  std::stable_sort(lines.begin(), lines.end(), [](const Compared& a, const Compared& b) {
    return std::pair(a.in_all, a.rounds) < std::pair(b.in_all, b.rounds);
  });
  return all;
}

}  // namespace starling::cli
