#include "starling/plan/choose.h"

#include <algorithm>

#include "starling/topology/schedules.h"

namespace starling {

Work work_on(const Profile& profile, const Sent& sent) {
  const double wire = static_cast<double>(bytes_of(sent.wire, 2)) / 8;
  const double per_value = sent.indices && sent.one_in > 1 ? 2 : wire;  // an index has the size of a float
  const double values = static_cast<double>(sent.vectors) / sent.one_in / sent.every;
  Work work = work_of(profile, per_value * values);
  for (double& bytes : work.mean_bytes) bytes *= values;
  work.groups = sent.has_mean && !is_modular(sent.wire);
  return work;
}

bool is_planned(const std::string& schedule, Wire wire) {
  return schedule != "complete" || !is_modular(wire);
}

std::vector<Candidate> candidates(const Network& network, int workers_per_node, const Profile& profile,
                                  const std::vector<std::string>& schedules, const std::vector<Wire>& wires,
                                  Sent sent, Mixing mixing, const Horizon& run) {
  std::vector<Candidate> all;
  for (const std::string& name : schedules) {
    const Schedule schedule = make_schedule(name, static_cast<int>(network.host_of.size()), workers_per_node);
    for (const Wire wire : wires) {
      if (!is_planned(name, wire)) continue;
      sent.wire = wire;
      all.push_back({name, wire, simulate(network, work_on(profile, sent), schedule, mixing, run)});
    }
  }
  return all;
}

const Candidate& recommended(const std::vector<Candidate>& all) {
  const auto step = [](const Candidate& c) { return c.outcome.step; };
  const double fastest = step(*std::ranges::min_element(all, {}, step));
  const auto width = [](const Candidate& c) { return bytes_of(c.wire, 2); };
  const Candidate* best = nullptr;
  for (const Candidate& c : all) {
    if (step(c) <= fastest * (1 + kAsGood) && (best == nullptr || width(c) > width(*best))) best = &c;
  }
  return *best;
}

}  // namespace starling
